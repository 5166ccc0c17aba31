import java.nio.ByteBuffer;
import java.security.MessageDigest;
import java.util.ArrayList;
import java.util.HexFormat;
import java.util.List;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.zip.Deflater;
import java.util.zip.Inflater;

/** Direct buffers, zlib, threads, child processes: a line for each result. */
public class Churn {
    static byte[] bytes(int seed, int length) {
        byte[] result = new byte[length];
        int x = seed;
        for (int i = 0; i < length; i++) {
            x = x * 1103515245 + 12345;
            result[i] = (byte) (x >>> 24);
        }
        return result;
    }

    static String work(int seed) throws Exception {
        MessageDigest sha = MessageDigest.getInstance("SHA-256");
        for (int i = 0; i < 40; i++) {
            byte[] plain = bytes(seed + i, 10000 + 311 * i);
            ByteBuffer direct = ByteBuffer.allocateDirect(plain.length);
            direct.put(plain).flip();
            Deflater deflater = new Deflater();
            deflater.setInput(direct);
            deflater.finish();
            byte[] packed = new byte[plain.length * 2];
            int size = deflater.deflate(packed);
            deflater.end();
            Inflater inflater = new Inflater();
            inflater.setInput(packed, 0, size);
            byte[] again = new byte[plain.length];
            inflater.inflate(again);
            inflater.end();
            sha.update(again);
        }
        return HexFormat.of().formatHex(sha.digest()).substring(0, 16);
    }

    public static void main(String[] arguments) throws Exception {
        System.out.println("main: " + work(0));
        var pool = Executors.newFixedThreadPool(4);
        List<Future<String>> futures = new ArrayList<>();
        for (int n = 1; n <= 8; n++) {
            int seed = n * 1000;
            futures.add(pool.submit(() -> work(seed)));
        }
        for (int n = 0; n < 8; n++) System.out.println("thread " + n + ": " + futures.get(n).get());
        pool.shutdown();
        List<byte[]> kept = new ArrayList<>();
        for (int i = 0; i < 100000; i++) {
            kept.add(new byte[i % 1000]);
            if (kept.size() > 5000) kept.clear();
        }
        System.gc();
        System.out.println("kept: " + kept.size());
        for (int n = 0; n < 3; n++) {
            Process child = new ProcessBuilder("sh", "-c", "echo child; exit 3").start();
            String said = new String(child.getInputStream().readAllBytes()).trim();
            System.out.println("process " + n + ": " + said + " " + child.waitFor());
        }
    }
}
