// echo.js server PORT | client PORT ROUNDS
// A client's connection stays open until the end of standard input.
'use strict';
const net = require('net');
const [, , role, port, rounds] = process.argv;

if (role === 'server') {
  net.createServer({ allowHalfOpen: true }, (c) => c.pipe(c)).listen(Number(port), '127.0.0.1');
} else {
  const conn = net.connect({ port: Number(port), host: '127.0.0.1', allowHalfOpen: true });
  let round = 0;
  let want = Buffer.alloc(0);
  let have = [];
  let length = 0;
  const next = () => {
    if (round === Number(rounds)) {
      console.log('done', round);
      process.stdin.on('end', () => conn.end()).resume();
      return;
    }
    want = Buffer.alloc((round * 104729) % 100000 + 1, `round ${round}`);
    have = [];
    length = 0;
    round += 1;
    conn.write(want);
  };
  conn.on('connect', next);
  conn.on('data', (block) => {
    have.push(block);
    length += block.length;
    if (length < want.length) return;
    if (!Buffer.concat(have).equals(want)) { console.error('wrong echo in round', round); process.exit(1); }
    next();
  });
  conn.on('error', (e) => { console.error(e); process.exit(1); });
  conn.on('end', () => process.exit(round === Number(rounds) ? 0 : 1));
}
