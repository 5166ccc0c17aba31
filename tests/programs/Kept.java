// Keeps 60 MB of arrays, allocates 200 MB of others, prints the committed bytes of the heap, and waits for the end of
// its input.
import java.util.ArrayList;
import java.util.List;

public class Kept {
    public static void main(String[] arguments) throws Exception {
        List<byte[]> kept = new ArrayList<>();
        for (int i = 0; i < 60000; i++) kept.add(new byte[1000]);
        long sum = 0;
        for (int i = 0; i < 200000; i++) sum += new byte[1000].length;
        System.out.println(Runtime.getRuntime().totalMemory());
        System.in.read();
        System.exit(kept.size() + sum > 0 ? 0 : 1);
    }
}
