import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.util.HexFormat;
import javax.security.auth.x500.X500Principal;
import org.apache.kafka.common.security.ssl.SslPrincipalMapper;

/**
 * Answers one line for each line of its input, in hex: "name DER" with the name of a subject, "rule RULES NAME" with
 * the name that the rules make of one; "!" where Java throws.
 */
public class Names {
    private static String text(String hex) {
        return new String(HexFormat.of().parseHex(hex), StandardCharsets.UTF_8);
    }

    private static String answer(String[] words) throws Exception {
        if (words[0].equals("name")) {
            return new X500Principal(HexFormat.of().parseHex(words[1])).getName();
        }
        String rules = words.length > 1 ? text(words[1]) : "";
        return SslPrincipalMapper.fromRules(rules).getName(words.length > 2 ? text(words[2]) : "");
    }

    public static void main(String[] arguments) throws Exception {
        BufferedReader input = new BufferedReader(new InputStreamReader(System.in));
        for (String line = input.readLine(); line != null; line = input.readLine()) {
            String told;
            try {
                told = "=" + HexFormat.of().formatHex(answer(line.split(" ", -1)).getBytes(StandardCharsets.UTF_8));
            } catch (Exception e) {
                told = "!";
            }
            System.out.println(told);
        }
    }
}
