import socket
c=socket.create_connection(('127.0.0.1',5313)); f=b'x'*50000
c.sendall(b'set k 0 0 50000\r\n'+f+b'\r\n'); assert c.recv(100)==b'STORED\r\n'
c.sendall(b'get k\r\n'); g=b''
while not g.endswith(b'END\r\n'): g+=c.recv(65536)
assert g==b'VALUE k 0 50000\r\n'+f+b'\r\nEND\r\n'; print('memcached ok')
