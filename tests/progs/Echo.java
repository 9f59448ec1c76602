import java.io.DataInputStream;
import java.io.OutputStream;
import java.net.InetAddress;
import java.net.ServerSocket;
import java.net.Socket;
import java.util.Arrays;
import java.util.Random;

/**
 * Echo.java server PORT | client PORT ROUNDS: blocking sockets.
 * A client's stays open until there is a byte, or the end, at standard input.
 */
public class Echo {
    public static void main(String[] args) throws Exception {
        int port = Integer.parseInt(args[1]);
        InetAddress here = InetAddress.getByName("127.0.0.1");
        if (args[0].equals("server")) {
            try (ServerSocket listener = new ServerSocket(port, 50, here)) {
                while (true) {
                    Socket c = listener.accept();
                    new Thread(() -> serve(c)).start();
                }
            }
        }
        int rounds = Integer.parseInt(args[2]);
        Random random = new Random(1);
        try (Socket c = new Socket(here, port)) {
            c.setTcpNoDelay(true);
            c.setSoTimeout(60000);
            DataInputStream in = new DataInputStream(c.getInputStream());
            OutputStream out = c.getOutputStream();
            for (int i = 0; i < rounds; i++) {
                byte[] sent = new byte[1 + random.nextInt(i % 10 == 0 ? 60000 : 500)];
                byte[] got = new byte[sent.length];
                random.nextBytes(sent);
                out.write(sent);
                in.readFully(got);
                if (!Arrays.equals(sent, got)) throw new IllegalStateException("wrong echo in round " + i);
            }
            System.out.println("done " + rounds);
            System.in.read();
            c.shutdownOutput();
            if (in.read() != -1) throw new IllegalStateException("bytes after the end");
        }
        closeWhileReading(here, port);
    }

    /** close() from another thread must end a blocked read with an exception. */
    private static void closeWhileReading(InetAddress here, int port) throws Exception {
        Socket c = new Socket(here, port);
        for (int i = 0; i < 100; i++) {
            c.getOutputStream().write(i);
            if (c.getInputStream().read() != i) throw new IllegalStateException("wrong byte");
        }
        boolean[] thrown = {false};
        Thread reader = new Thread(() -> {
            try {
                c.getInputStream().read();
            } catch (java.io.IOException expected) {
                thrown[0] = true;
            }
        });
        reader.start();
        Thread.sleep(100);
        c.close();
        reader.join(60000);
        if (reader.isAlive() || !thrown[0]) throw new IllegalStateException("the blocked read did not end");
    }

    private static void serve(Socket c) {
        byte[] block = new byte[65536];
        try (c) {
            int n;
            while ((n = c.getInputStream().read(block)) > 0) c.getOutputStream().write(block, 0, n);
        } catch (java.io.IOException ended) {
            // A client that goes away is no failure of the server.
        }
    }
}
