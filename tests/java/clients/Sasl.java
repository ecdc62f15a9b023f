import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Base64;
import java.util.List;
import java.util.Map;
import java.util.Scanner;
import java.util.TreeMap;
import javax.security.auth.login.AppConfigurationEntry;
import org.apache.kafka.common.config.types.Password;
import org.apache.kafka.common.security.JaasContext;
import org.apache.kafka.common.security.plain.internals.PlainSaslServer;
import org.apache.kafka.common.security.plain.internals.PlainServerCallbackHandler;
import org.apache.kafka.common.security.scram.ScramCredential;
import org.apache.kafka.common.security.scram.internals.ScramFormatter;
import org.apache.kafka.common.security.scram.internals.ScramMechanism;
import org.apache.kafka.common.security.scram.internals.ScramMessages.ClientFinalMessage;
import org.apache.kafka.common.security.scram.internals.ScramMessages.ClientFirstMessage;

/**
 * What Kafka's classes make of each line of standard input: a kind, and bytes in base64. One line for each, its
 * fields separated by tabs; texts are in base64.
 */
public final class Sasl {
    private static final String PLAIN =
        "org.apache.kafka.common.security.plain.PlainLoginModule required user_alice=\"secret\" user_bob=\"\u00f6\";";

    private static String encoded(byte[] bytes) {
        return Base64.getEncoder().encodeToString(bytes);
    }

    private static String encoded(String text) {
        return encoded(text.getBytes(StandardCharsets.UTF_8));
    }

    private static List<AppConfigurationEntry> entries(String text) {
        return JaasContext.loadClientContext(Map.of("sasl.jaas.config", new Password(text))).configurationEntries();
    }

    private static String jaas(byte[] input) {
        AppConfigurationEntry entry = entries(new String(input, StandardCharsets.UTF_8)).get(0);
        List<String> found = new ArrayList<>();
        found.add(encoded(entry.getLoginModuleName()));
        found.add(entry.getControlFlag().toString().split(" ")[1].toUpperCase());
        new TreeMap<String, Object>(entry.getOptions())
            .forEach((key, value) -> found.add(encoded(key) + "=" + encoded((String) value)));
        return String.join("\t", found);
    }

    private static String plain(byte[] input) throws Exception {
        PlainServerCallbackHandler users = new PlainServerCallbackHandler();
        users.configure(Map.of(), "PLAIN", entries(PLAIN));
        PlainSaslServer server = new PlainSaslServer(users);
        server.evaluateResponse(input);
        return encoded(server.getAuthorizationID());
    }

    private static String first(byte[] input) throws Exception {
        ClientFirstMessage message = new ClientFirstMessage(input);
        return String.join("\t", encoded(message.authorizationId()), encoded(ScramFormatter.username(message.saslName())),
            encoded(message.nonce()));
    }

    private static String last(byte[] input) throws Exception {
        ClientFinalMessage message = new ClientFinalMessage(input);
        return String.join("\t", encoded(message.channelBinding()), encoded(message.nonce()), encoded(message.proof()));
    }

    private static String keys(ScramMechanism mechanism, byte[] input) throws Exception {
        ScramFormatter formatter = new ScramFormatter(mechanism);
        byte[] salt = "salt".getBytes(StandardCharsets.UTF_8);
        byte[] salted = formatter.saltedPassword(new String(input, StandardCharsets.UTF_8), salt, 4096);
        ScramCredential credential = formatter.generateCredential(salt, salted, 4096);
        return String.join("\t", encoded(credential.storedKey()), encoded(credential.serverKey()));
    }

    private static String answer(String kind, byte[] input) throws Exception {
        switch (kind) {
            case "jaas": return jaas(input);
            case "plain": return plain(input);
            case "first": return first(input);
            case "last": return last(input);
            case "SCRAM-SHA-256": return keys(ScramMechanism.SCRAM_SHA_256, input);
            case "SCRAM-SHA-512": return keys(ScramMechanism.SCRAM_SHA_512, input);
            default: throw new IllegalArgumentException(kind);
        }
    }

    public static void main(String[] arguments) {
        Scanner lines = new Scanner(System.in, StandardCharsets.UTF_8);
        while (lines.hasNextLine()) {
            String[] fields = lines.nextLine().split(" ", 2);
            byte[] input = Base64.getDecoder().decode(fields.length < 2 ? "" : fields[1]);
            try {
                System.out.println("ok\t" + answer(fields[0], input));
            } catch (Exception e) {
                System.out.println("no\t" + encoded(String.valueOf(e.getMessage())));
            }
        }
    }
}
