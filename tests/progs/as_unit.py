"""as_unit.py UNIT: becomes the program of a systemd unit, with the unit's settings, where no systemd runs.

Reads the unit and its drop-ins, says which settings it applies and which it does not know, and executes what stands in
ExecStart. To be started as root in a mount namespace of its own, whose root directory is the system's (in a chroot there
are no user namespaces); /run/walk has the program `confine`. systemd-analyze says which system calls are in a group.
"""
import glob
import os
import pwd
import shlex
import subprocess
import sys

TOOLS = "/run/walk"
unit = sys.argv[1].removesuffix(".service")
template, at, instance = unit.partition("@")


def read(path):
    service = False
    for line in open(path).read().replace("\\\n", " ").splitlines():
        line = line.strip()
        if line.startswith("["):
            service = line == "[Service]"
        elif service and line and line[0] not in "#;":
            key, _, value = line.partition("=")
            yield key.strip(), value.strip().replace("%i", instance).replace("%I", instance)


settings = {}
for path in [f"/lib/systemd/system/{template}{at}.service"] + sorted(glob.glob(f"/etc/systemd/system/{unit}.service.d/*.conf")):
    for key, value in read(path):
        # An empty value takes back what was said before.
        settings[key] = settings.get(key, []) + [value] if value else []
told = set(settings)
applied, options, runtime = [], [], []


def take(key):
    values = settings.pop(key, [])
    if values and key not in START:
        applied.append(f"{key}={' '.join(values)}")
    return values


# What starts and ends it is no restriction.
START = {"ExecStart", "ExecStartPre", "ExecStop", "ExecReload", "Type", "PIDFile", "Restart", "TimeoutStopSec", "TimeoutStartSec", "KillMode",
         "SyslogIdentifier", "Environment", "OOMScoreAdjust"}


def is_on(key):
    return take(key)[-1:] in (["true"], ["yes"])


def mount(*args):
    subprocess.run(["mount", *args], check=True)


def bind(path, how="rw"):
    """Makes it a mount of its own, with rights of its own."""
    path = os.path.realpath(path)
    mount("--bind", path, path)
    mount("-o", f"remount,bind,{how}", path)


def private_devices():
    os.makedirs("/run/walk/dev", exist_ok=True)
    mount("-t", "tmpfs", "-o", "mode=755", "none", "/run/walk/dev")
    for name in ["null", "zero", "full", "random", "urandom", "tty", "shm", "pts"]:
        old, new = f"/dev/{name}", f"/run/walk/dev/{name}"
        os.mkdir(new) if os.path.isdir(old) else open(new, "w").close()
        mount("--bind", old, new)
    mount("--move", "/run/walk/dev", "/dev")


user = take("User")
account = pwd.getpwnam(user[0]) if user else pwd.getpwnam("root")
take("Group")
for name in take("RuntimeDirectory"):
    os.makedirs(f"/run/{name}", exist_ok=True)
    os.chown(f"/run/{name}", account.pw_uid, account.pw_gid)
    os.chmod(f"/run/{name}", int((take("RuntimeDirectoryMode") or ["755"])[0], 8))
    runtime.append(f"/run/{name}")
writable = [p.lstrip("-") for key in ("ReadWritePaths", "ReadWriteDirectories") for value in take(key) for p in value.split()]
writable = sorted({os.path.realpath(p) for p in writable + runtime if os.path.exists(p)})

# The program that confines lies in a mount of its own, from which it may be executed.
bind(TOOLS)
calls = take("SystemCallFilter")
if calls:
    def group(name):
        said = subprocess.run(["systemd-analyze", "syscall-filter", name], capture_output=True, text=True, check=True).stdout
        for word in (line.strip() for line in said.splitlines() if line.startswith("    ")):
            if word.startswith("@"):
                yield from group(word)
            elif not word.startswith("#"):
                yield word
    allowed = {"execve"}
    for value in calls:
        names = {n for word in value.lstrip("~").split() for n in (group(word) if word.startswith("@") else [word])}
        allowed = allowed - names | {"execve"} if value.startswith("~") else allowed | names
    open(f"{TOOLS}/calls", "w").write("\n".join(sorted(allowed)))
    options.append(f"calls={TOOLS}/calls")

noexec = ",noexec" if take("NoExecPaths") else ""
if is_on("PrivateTmp"):
    for path in ["/tmp", "/var/tmp"]:
        mount("-t", "tmpfs", "-o", "mode=1777" + noexec, "none", path)
if is_on("PrivateDevices"):
    private_devices()
if is_on("ProtectHome"):
    for path in ["/home", "/root"]:
        mount("-t", "tmpfs", "-o", "mode=000,ro", "none", path)
for how in take("ProtectProc"):
    mount("-t", "proc", "-o", f"hidepid={how}", "none", "/proc")
# Last, for where nothing may be executed nothing more is mounted.
strict = (take("ProtectSystem") or ["no"])[-1]
if strict == "strict" or noexec:
    for path in writable:
        bind(path, "rw" + noexec)
    for path in {p for value in take("ExecPaths") for p in value.split()}:
        bind(path, "ro")
    for path in ["/run", "/"]:
        mount("-o", ("remount,bind,ro" if strict == "strict" else "remount,bind") + noexec, path)
elif strict == "full":
    for path in ["/usr", "/etc"]:
        bind(path, "ro")
for families in take("RestrictAddressFamilies"):
    options.append("families=" + ",".join(name.removeprefix("AF_").lower() for name in families.split()))
if is_on("MemoryDenyWriteExecute"):
    options.append("mdwe")
if is_on("PrivateUsers"):
    options.append("users")
# Of what is confined here, each filter of system calls goes with it.
is_on("NoNewPrivileges")
if user:
    options.append(f"user={account.pw_uid}")
for mask in take("UMask"):
    os.umask(int(mask, 8))
command = []
had_bounds = "CapabilityBoundingSet" in told
bounds = take("CapabilityBoundingSet")
if bounds:
    names = ",".join("+" + name.removeprefix("CAP_").lower() for name in " ".join(bounds).split())
    command += ["setpriv", f"--bounding-set=-all,{names}"]
elif had_bounds and user:
    applied.append("CapabilityBoundingSet= (a user has none)")
    settings.pop("CapabilityBoundingSet", None)

environment = {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin", "LANG": "C.UTF-8"}
if user:
    environment |= {"USER": user[0], "LOGNAME": user[0], "HOME": account.pw_dir}
preload = {}
for value in take("Environment"):
    for word in shlex.split(value):
        name, _, text = word.partition("=")
        preload[name] = text
# confine and setpriv are no part of the service.
library = preload.pop("LD_PRELOAD", None)
environment |= preload
start = shlex.split(take("ExecStart")[-1].lstrip("-@:+!"))
if options:
    command += [f"{TOOLS}/confine", *options] + ([f"preload={library}"] if library else []) + ["--"]
elif library:
    environment["LD_PRELOAD"] = library
for key in START:
    settings.pop(key, None)
print(f"{unit}: {' '.join(start)}")
variables = ({"LD_PRELOAD": library} if library else {}) | preload
print("  environment: " + (" ".join(f"{name}={text}" for name, text in variables.items()) or "nothing of its own"))
print("  applied: " + ("; ".join(applied) or "the unit restricts nothing"))
print("  not applied: " + (", ".join(sorted(settings)) or "nothing"), flush=True)
command += start
os.chdir("/")
os.execvpe(command[0], command, environment)
