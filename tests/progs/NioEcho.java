import java.io.IOException;
import java.net.InetAddress;
import java.net.InetSocketAddress;
import java.nio.ByteBuffer;
import java.nio.channels.SelectionKey;
import java.nio.channels.Selector;
import java.nio.channels.ServerSocketChannel;
import java.nio.channels.SocketChannel;
import java.util.Random;

/**
 * NioEcho.java server PORT | client PORT CONNECTIONS ROUNDS: one selector on each side.
 * A client's connections stay open until there is a byte, or the end, at standard input.
 */
public class NioEcho {
    static final class Talk {
        final ByteBuffer out = ByteBuffer.allocateDirect(1 << 16), in = ByteBuffer.allocateDirect(1 << 16);
        byte[] want = new byte[0];
        int round;
    }

    public static void main(String[] args) throws Exception {
        InetSocketAddress at = new InetSocketAddress(InetAddress.getByName("127.0.0.1"), Integer.parseInt(args[1]));
        try (Selector selector = Selector.open()) {
            if (args[0].equals("server")) serve(selector, at);
            else talk(selector, at, Integer.parseInt(args[2]), Integer.parseInt(args[3]));
        }
    }

    static void serve(Selector selector, InetSocketAddress at) throws IOException {
        ServerSocketChannel listener = ServerSocketChannel.open();
        listener.bind(at).configureBlocking(false);
        listener.register(selector, SelectionKey.OP_ACCEPT);
        while (true) {
            selector.select();
            for (SelectionKey key : selector.selectedKeys()) {
                if (key.isAcceptable()) {
                    SocketChannel c = listener.accept();
                    c.configureBlocking(false);
                    c.register(selector, SelectionKey.OP_READ, ByteBuffer.allocateDirect(1 << 15));
                    continue;
                }
                SocketChannel c = (SocketChannel) key.channel();
                ByteBuffer pending = (ByteBuffer) key.attachment();
                if (key.isReadable() && c.read(pending) < 0) {
                    c.close();
                    continue;
                }
                pending.flip();
                c.write(pending);
                pending.compact();
                key.interestOps((pending.position() > 0 ? SelectionKey.OP_WRITE : 0)
                        | (pending.hasRemaining() ? SelectionKey.OP_READ : 0));
            }
            selector.selectedKeys().clear();
        }
    }

    static void talk(Selector selector, InetSocketAddress at, int connections, int rounds) throws IOException {
        Random random = new Random(2);
        for (int i = 0; i < connections; i++) {
            SocketChannel c = SocketChannel.open(at);
            c.configureBlocking(false);
            Talk t = new Talk();
            question(t, random);
            c.register(selector, SelectionKey.OP_WRITE | SelectionKey.OP_READ, t);
        }
        for (int left = connections; left > 0;) {
            if (selector.select(60000) == 0) throw new IllegalStateException("nothing for a minute");
            for (SelectionKey key : selector.selectedKeys()) {
                SocketChannel c = (SocketChannel) key.channel();
                Talk t = (Talk) key.attachment();
                if (t.out.hasRemaining()) c.write(t.out);
                if (c.read(t.in) < 0) throw new IllegalStateException("early end");
                if (t.in.position() == t.want.length) {
                    if (!t.in.flip().equals(ByteBuffer.wrap(t.want))) throw new IllegalStateException("wrong echo");
                    if (++t.round == rounds) {
                        key.interestOps(0);
                        left--;
                        continue;
                    }
                    question(t, random);
                }
                key.interestOps(SelectionKey.OP_READ | (t.out.hasRemaining() ? SelectionKey.OP_WRITE : 0));
            }
            selector.selectedKeys().clear();
        }
        System.out.println("done " + connections * rounds);
        System.in.read();
        for (SelectionKey key : selector.keys()) key.channel().close();
    }

    static void question(Talk t, Random random) {
        t.want = new byte[1 + random.nextInt(t.round % 10 == 0 ? 60000 : 300)];
        random.nextBytes(t.want);
        t.in.clear();
        t.out.clear().put(t.want).flip();
    }
}
