//! Lua tables as arguments of the engine's own apps.

use mlua::Value;

/// A table of arguments. The error names the key.
pub fn to_toml(table: &mlua::Table) -> Result<toml::Table, String> {
    match value(&Value::Table(table.clone()), 0)? {
        toml::Value::Table(table) => Ok(table),
        // A table without keys.
        toml::Value::Array(items) if items.is_empty() => Ok(toml::Table::new()),
        _ => Err("a list, where a table with names is needed".to_string()),
    }
}

/// Deeper than any kind's arguments, and an end for a table that holds itself.
const DEEPEST: usize = 16;

fn value(from: &Value, depth: usize) -> Result<toml::Value, String> {
    Ok(match from {
        Value::Boolean(value) => toml::Value::Boolean(*value),
        Value::Integer(value) => toml::Value::Integer(*value),
        // Lua has one kind of number; a whole one is meant as such.
        Value::Number(value) if value.fract() == 0.0 && value.abs() < 9e15 => {
            toml::Value::Integer(*value as i64)
        }
        Value::Number(value) => toml::Value::Float(*value),
        Value::String(text) => {
            let text = text.to_str().map_err(|_| "a string that is not UTF-8".to_string())?;
            toml::Value::String(text.to_string())
        }
        Value::Table(_) if depth == DEEPEST => {
            return Err("a table that is nested too deeply".to_string());
        }
        Value::Table(table) if table.raw_len() > 0 || table.is_empty() => {
            let items = table.sequence_values::<Value>();
            let items =
                items.map(|item| value(&item.map_err(|error| error.to_string())?, depth + 1));
            toml::Value::Array(items.collect::<Result<_, String>>()?)
        }
        Value::Table(table) => toml::Value::Table(entries(table, depth)?),
        other => return Err(format!("a {}, which this app cannot take", other.type_name())),
    })
}

fn entries(table: &mlua::Table, depth: usize) -> Result<toml::Table, String> {
    let mut entries = toml::Table::new();
    for pair in table.pairs::<Value, Value>() {
        let (key, item) = pair.map_err(|error| error.to_string())?;
        let Value::String(key) = key else {
            return Err(format!("a key that is a {} instead of a name", key.type_name()));
        };
        let key = key.to_string_lossy();
        let item = value(&item, depth + 1).map_err(|problem| format!("key '{key}': {problem}"))?;
        entries.insert(key, item);
    }
    Ok(entries)
}
