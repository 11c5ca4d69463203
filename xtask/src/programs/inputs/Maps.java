import java.util.HashMap;

/** Fills a map, changes it, and looks everything up. */
public class Maps {
    public static void main(String[] arguments) {
        int count = Integer.parseInt(arguments[0]);
        HashMap<String, long[]> map = new HashMap<>();
        for (int i = 0; i < count; i++) {
            map.put("key-" + i * 2654435761L, new long[] {i, i * 3L, i ^ 0x5555});
        }
        for (int round = 0; round < 3; round++) {
            for (int i = round; i < count; i += 3) {
                map.put("key-" + i * 2654435761L, new long[] {i + round, i * 7L});
            }
        }
        long sum = 0;
        for (int i = 0; i < count; i++) {
            long[] value = map.get("key-" + i * 2654435761L);
            sum = sum * 31 + value[0] + value[1] + value.length;
        }
        System.out.println(map.size() + " " + sum);
    }
}
