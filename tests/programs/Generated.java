// Calls the allocator from interpreted and compiled methods, of several threads: for as many rounds
// as its argument says.
import java.nio.ByteBuffer;
import java.util.zip.Deflater;
import java.util.zip.Inflater;

public class Generated {
    static int packed(byte[] text, byte[] room) {
        Deflater deflater = new Deflater(1);
        deflater.setInput(text);
        deflater.finish();
        int packed = deflater.deflate(room);
        deflater.end();
        Inflater inflater = new Inflater();
        inflater.setInput(room, 0, packed);
        inflater.end();
        return packed;
    }

    static int deep(int levels, byte[] text, byte[] room) {
        return levels == 0 ? packed(text, room) : deep(levels - 1, text, room) + 1;
    }

    static long rounds(int rounds) {
        byte[] text = new byte[2000], room = new byte[4000];
        long sum = 0;
        for (int round = 0; round < rounds; round += 1) {
            text[round % text.length] += (byte) round;
            sum += deep(round % 40, text, room);
            if (round % 50 == 0) {
                sum += ByteBuffer.allocateDirect(3000 + round % 7).capacity();
            }
        }
        return sum;
    }

    public static void main(String[] arguments) throws InterruptedException {
        int rounds = Integer.parseInt(arguments[0]);
        Thread other = new Thread(() -> rounds(rounds));
        other.start();
        rounds(rounds);
        other.join();
        System.out.println("done");
    }
}
