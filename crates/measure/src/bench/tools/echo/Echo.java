import java.io.IOException;
import java.net.InetSocketAddress;
import java.net.StandardSocketOptions;
import java.nio.ByteBuffer;
import java.nio.channels.SelectionKey;
import java.nio.channels.Selector;
import java.nio.channels.ServerSocketChannel;
import java.nio.channels.SocketChannel;
import java.util.Iterator;

/** Listens on any free port of the address given, prints address and port, sends back what comes. */
public class Echo {
    public static void main(String[] args) throws IOException {
        Selector selector = Selector.open();
        ServerSocketChannel listener = ServerSocketChannel.open();
        listener.bind(new InetSocketAddress(args[0], 0)).configureBlocking(false);
        listener.register(selector, SelectionKey.OP_ACCEPT);
        System.out.println(args[0] + ":" + ((InetSocketAddress) listener.getLocalAddress()).getPort());
        while (true) {
            selector.select();
            for (Iterator<SelectionKey> keys = selector.selectedKeys().iterator(); keys.hasNext(); ) {
                SelectionKey key = keys.next();
                keys.remove();
                if (key.isAcceptable()) {
                    SocketChannel connection = listener.accept();
                    connection.configureBlocking(false);
                    connection.setOption(StandardSocketOptions.TCP_NODELAY, true);
                    connection.register(selector, SelectionKey.OP_READ, ByteBuffer.allocateDirect(1 << 14));
                } else {
                    echo(key);
                }
            }
        }
    }

    static void echo(SelectionKey key) throws IOException {
        SocketChannel connection = (SocketChannel) key.channel();
        ByteBuffer waiting = (ByteBuffer) key.attachment();
        try {
            if (key.isReadable() && connection.read(waiting) < 0) {
                connection.close();
                return;
            }
            waiting.flip();
            connection.write(waiting);
            waiting.compact();
            int wanted = waiting.hasRemaining() ? SelectionKey.OP_READ : 0;
            int owed = waiting.position() > 0 ? SelectionKey.OP_WRITE : 0;
            key.interestOps(wanted | owed);
        } catch (IOException error) {
            connection.close();
        }
    }
}
