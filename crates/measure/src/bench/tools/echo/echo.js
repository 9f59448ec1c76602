// Listens on any free port of the address given, prints address and port, sends back what comes.
'use strict';
const net = require('net');
const server = net.createServer({ noDelay: true }, (connection) => {
  connection.on('error', () => connection.destroy());
  connection.on('data', (bytes) => connection.write(bytes));
});
server.listen(0, process.argv[2], () => {
  const { address, port } = server.address();
  console.log(`${address}:${port}`);
});
