#!/bin/bash
# ssh.sh DIRECTORY SHORTWIRE: sshd, and everything that ssh does, under `shortwire run`; a word for each thing that worked.
set -u
cd "$1" || exit 1
run=("$2" run --)
free() { python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])'; }
port=$(free) web=$(free) to=$(free) from=$(free) socks=$(free)
mkdir -p /run/sshd
for key in host user; do ssh-keygen -q -t ed25519 -N '' -f $key; done
cp user.pub authorized
chmod 600 authorized
cat >config <<EOF
Port $port
ListenAddress 127.0.0.1
HostKey $PWD/host
AuthorizedKeysFile $PWD/authorized
PermitRootLogin yes
StrictModes no
UsePAM no
PidFile none
MaxAuthTries 20
Subsystem sftp internal-sftp
EOF
sshd=$(PATH=$PATH:/usr/sbin command -v sshd)
options="-i user -F none -o IdentitiesOnly=yes -o StrictHostKeyChecking=no -o UserKnownHostsFile=/dev/null -o LogLevel=ERROR"
there=$(id -un)@127.0.0.1
"${run[@]}" "$sshd" -D -f config & server=$!
trap 'kill $server ${http:-} ${tunnels:-} 2>/dev/null; wait' EXIT
# Who hangs is the harness's to end, which knows how busy the machine is.
reach() { until (: </dev/tcp/127.0.0.1/"$1") 2>/dev/null; do kill -0 "$2" || exit 1; sleep 0.1; done; }
reach "$port" $server
head -c 20000000 /dev/urandom >big
try() { "${run[@]}" "$@"; }
is_big() { cmp -s big "$1" && echo "$2"; }

[ "$(try ssh -p "$port" $options "$there" 'echo hi')" = hi ] && echo login
try ssh -p "$port" $options "$there" cat <big >cat && is_big cat cat
try scp -q -P "$port" $options big "$there:$PWD/scp" && is_big scp scp
try scp -q -O -P "$port" $options "$there:$PWD/big" scp-O && is_big scp-O "scp -O"
echo "get $PWD/big $PWD/sftp" | try sftp -q -b - -P "$port" $options "$there" >/dev/null && is_big sftp sftp
try rsync -e "ssh -p $port $options" big "$there:$PWD/rsync" && is_big rsync rsync

python3 -m http.server -d . --bind 127.0.0.1 "$web" >/dev/null 2>&1 & http=$!
"${run[@]}" ssh -p "$port" $options -N -L "$to:127.0.0.1:$web" -R "$from:127.0.0.1:$web" -D "$socks" "$there" & tunnels=$!
reach "$web" $http
for listener in "$to" "$from" "$socks"; do reach "$listener" $tunnels; done
try curl -s "http://127.0.0.1:$to/big" >l && is_big l -L
try curl -s "http://127.0.0.1:$from/big" >r && is_big r -R
try curl -s --socks5 "127.0.0.1:$socks" "http://127.0.0.1:$web/big" >d && is_big d -D
exit 0
