//! Arguments of apps: from a table to a typed struct, with errors that name the key.

use serde::de::{self, DeserializeOwned, IntoDeserializer, Visitor};
use toml::{Table, Value};

/// What is wrong with the arguments of an app.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ArgError {
    /// The kind has no such argument.
    Unknown {
        /// What was written.
        key: String,
        /// The keys that there are.
        known: &'static [&'static str],
    },
    /// An argument that has no default was left out.
    Missing {
        /// Its key.
        key: &'static str,
    },
    /// `key` is empty if the arguments as a whole are meant.
    Wrong {
        /// Whose value it is.
        key: String,
        /// What is wrong with the value, for people.
        problem: String,
    },
}

impl ArgError {
    /// A value that has the right type but cannot be used.
    pub fn wrong(key: impl Into<String>, problem: impl Into<String>) -> Self {
        Self::Wrong { key: key.into(), problem: problem.into() }
    }

    /// The key that the error is about.
    pub fn key(&self) -> &str {
        match self {
            Self::Unknown { key, .. } | Self::Wrong { key, .. } => key,
            Self::Missing { key } => key,
        }
    }
}

impl std::fmt::Display for ArgError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Unknown { key, known: [] } => {
                write!(f, "unknown key '{key}': this kind takes no arguments")
            }
            Self::Unknown { key, known } => {
                write!(f, "unknown key '{key}'")?;
                match nearest(key, known.iter().copied()) {
                    Some(near) => write!(f, "; did you mean '{near}'?"),
                    None => write!(f, "; known are {}", known.join(", ")),
                }
            }
            Self::Missing { key } => write!(f, "missing key '{key}'"),
            Self::Wrong { key, problem } if key.is_empty() => f.write_str(problem),
            Self::Wrong { key, problem } => write!(f, "key '{key}': {problem}"),
        }
    }
}

impl std::error::Error for ArgError {}

impl de::Error for ArgError {
    fn custom<T: std::fmt::Display>(message: T) -> Self {
        Self::wrong("", message.to_string())
    }

    fn unknown_field(field: &str, expected: &'static [&'static str]) -> Self {
        Self::Unknown { key: field.to_string(), known: expected }
    }

    fn missing_field(field: &'static str) -> Self {
        Self::Missing { key: field }
    }
}

/// Reads typed arguments out of a table. Structs should carry `#[serde(deny_unknown_fields)]`.
pub fn parse<T: DeserializeOwned>(table: &Table) -> Result<T, ArgError> {
    T::deserialize(Args(table))
}

/// As [`parse`], with everything that is wrong and not the first of it. There may be arguments
/// although there are problems: those that are left without unknown keys.
pub fn parse_all<T: DeserializeOwned>(table: &Table) -> (Option<T>, Vec<ArgError>) {
    let mut rest = table.clone();
    let mut problems = Vec::new();
    // Whether what is left is what was written, but for unknown keys.
    let mut written = true;
    loop {
        let error = match parse(&rest) {
            Ok(args) => return (Some(args).filter(|_| written), problems),
            Err(error) => error,
        };
        // With what is wrong taken away, or put in its place, the next look gets further.
        let (further, told) = match &error {
            ArgError::Unknown { key, .. } => (rest.remove(key).map(|_| rest), true),
            ArgError::Wrong { key, .. } => {
                written = false;
                (rest.remove(key).map(|_| rest), true)
            }
            ArgError::Missing { key } => {
                written = false;
                // A wrong value was taken away above, and so was the key where it is misspelt: that it
                // is missing is nothing new.
                let misspelt = |problem: &ArgError| match problem {
                    ArgError::Unknown { key: other, known } => {
                        nearest(other, known.iter().copied()) == Some(*key)
                    }
                    _ => false,
                };
                let new = !table.contains_key(*key) && !problems.iter().any(misspelt);
                (stand_in::<T>(rest, key), new)
            }
        };
        if told {
            problems.push(error);
        }
        match further {
            Some(further) => rest = further,
            None => return (None, problems),
        }
    }
}

/// The table with some value for a missing key that its type allows.
fn stand_in<T: DeserializeOwned>(mut table: Table, key: &str) -> Option<Table> {
    let values: [Value; 6] = [
        Value::String(String::new()),
        Value::Integer(1),
        Value::Float(1.0),
        Value::Boolean(false),
        Value::Array(Vec::new()),
        Value::Table(Table::new()),
    ];
    for value in values {
        table.insert(key.to_string(), value);
        match parse::<T>(&table) {
            Err(error @ ArgError::Wrong { .. }) if error.key() == key => {}
            _ => return Some(table),
        }
    }
    None
}

/// The known name that a misspelt one probably means.
pub fn nearest<'a>(word: &str, known: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    let lower = word.to_lowercase();
    known
        .map(|name| (distance(&lower, &name.to_lowercase()), name))
        .filter(|(distance, name)| *distance <= 1 + name.len().min(word.len()) / 3)
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, name)| name)
}

/// Edits (insert, delete, replace) between two words.
fn distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.chars().enumerate() {
        let mut diagonal = std::mem::replace(&mut row[0], i + 1);
        for (j, y) in b.iter().enumerate() {
            let replaced = diagonal + usize::from(x != *y);
            diagonal = row[j + 1];
            row[j + 1] = replaced.min(row[j] + 1).min(diagonal + 1);
        }
    }
    row[b.len()]
}

struct Args<'a>(&'a Table);

impl<'de> de::Deserializer<'de> for Args<'_> {
    type Error = ArgError;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, ArgError> {
        visitor.visit_map(Entries { entries: self.0.iter(), current: None })
    }

    fn deserialize_unit<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, ArgError> {
        match self.0.keys().next() {
            Some(key) => Err(ArgError::Unknown { key: key.clone(), known: &[] }),
            None => visitor.visit_unit(),
        }
    }

    fn deserialize_unit_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        visitor: V,
    ) -> Result<V::Value, ArgError> {
        self.deserialize_unit(visitor)
    }

    serde::forward_to_deserialize_any! {
        bool i8 i16 i32 i64 u8 u16 u32 u64 f32 f64 char str string bytes byte_buf option newtype_struct seq tuple
        tuple_struct map struct enum identifier ignored_any
    }
}

struct Entries<'a> {
    entries: toml::map::Iter<'a, String, Value>,
    current: Option<(&'a str, &'a Value)>,
}

impl<'de> de::MapAccess<'de> for Entries<'_> {
    type Error = ArgError;

    fn next_key_seed<K: de::DeserializeSeed<'de>>(
        &mut self,
        seed: K,
    ) -> Result<Option<K::Value>, ArgError> {
        self.current = self.entries.next().map(|(key, value)| (key.as_str(), value));
        let Some((key, _)) = self.current else { return Ok(None) };
        seed.deserialize(IntoDeserializer::<ArgError>::into_deserializer(key)).map(Some)
    }

    fn next_value_seed<V: de::DeserializeSeed<'de>>(
        &mut self,
        seed: V,
    ) -> Result<V::Value, ArgError> {
        let Some((key, value)) = self.current.take() else {
            return Err(de::Error::custom("a value without a key"));
        };
        // The value's own errors speak of types; the key makes them useful.
        seed.deserialize(value.clone())
            .map_err(|error| ArgError::wrong(key, error.message().trim().to_string()))
    }
}
