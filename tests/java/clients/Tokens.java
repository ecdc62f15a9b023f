import java.lang.reflect.Field;
import java.lang.reflect.Proxy;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Base64;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Scanner;
import java.util.TreeMap;
import javax.security.auth.callback.Callback;
import javax.security.auth.login.AppConfigurationEntry;
import org.apache.kafka.common.config.types.Password;
import org.apache.kafka.common.security.JaasContext;
import org.apache.kafka.common.security.oauthbearer.BrokerJwtValidator;
import org.apache.kafka.common.security.oauthbearer.OAuthBearerToken;
import org.apache.kafka.common.security.oauthbearer.OAuthBearerValidatorCallback;
import org.apache.kafka.common.security.oauthbearer.internals.OAuthBearerClientInitialResponse;
import org.apache.kafka.common.security.oauthbearer.internals.unsecured.OAuthBearerUnsecuredValidatorCallbackHandler;
import org.apache.kafka.common.utils.Time;
import org.jose4j.jwt.NumericDate;
import org.jose4j.jwt.consumer.JwtConsumer;
import org.jose4j.jwt.consumer.NumericDateValidator;

/**
 * What Kafka's classes make of tokens. First the time that it is, in seconds, and the URL of a key set; then lines
 * of a kind, settings ("key=value" with line ends between them) and bytes, both in base64. One line for each.
 */
public final class Tokens {
    private static final String MODULE =
        "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule required";

    private static long nowSeconds;
    private static String keySet;

    private static String encoded(String text) {
        return Base64.getEncoder().encodeToString(text.getBytes(StandardCharsets.UTF_8));
    }

    private static List<AppConfigurationEntry> entries(String options) {
        Password text = new Password(MODULE + options + ";");
        return JaasContext.loadClientContext(Map.of("sasl.jaas.config", text)).configurationEntries();
    }

    private static Object field(Object object, Class<?> type, String name) throws Exception {
        Field field = type.getDeclaredField(name);
        field.setAccessible(true);
        return field.get(object);
    }

    private static String initial(byte[] input) throws Exception {
        OAuthBearerClientInitialResponse found = new OAuthBearerClientInitialResponse(input);
        List<String> fields = new ArrayList<>();
        fields.add(encoded(found.tokenValue()));
        fields.add(encoded(found.authorizationId()));
        new TreeMap<>(found.extensions().map())
            .forEach((key, value) -> fields.add(encoded(key) + "=" + encoded(value)));
        return String.join("\t", fields);
    }

    private static String shown(OAuthBearerToken token) {
        return encoded(token.principalName()) + "\t" + token.lifetimeMs();
    }

    private static String unsecured(Map<String, String> settings, byte[] input) throws Exception {
        OAuthBearerUnsecuredValidatorCallbackHandler handler = new OAuthBearerUnsecuredValidatorCallbackHandler();
        StringBuilder options = new StringBuilder(" unsecuredValidatorAllowableClockSkewMs=\"0\"");
        settings.forEach((key, value) -> options.append(" " + key + "=\"" + value + "\""));
        handler.configure(Map.of(), "OAUTHBEARER", entries(options.toString()));
        Field time = OAuthBearerUnsecuredValidatorCallbackHandler.class.getDeclaredField("time");
        time.setAccessible(true);
        time.set(handler, Proxy.newProxyInstance(
            Time.class.getClassLoader(), new Class<?>[] {Time.class}, (proxy, method, given) -> nowSeconds * 1000));
        OAuthBearerValidatorCallback asked =
            new OAuthBearerValidatorCallback(new String(input, StandardCharsets.UTF_8));
        handler.handle(new Callback[] {asked});
        if (asked.token() == null)
            throw new Exception(asked.errorStatus() + " " + asked.errorScope());
        return shown(asked.token());
    }

    private static String signed(Map<String, String> settings, byte[] input) throws Exception {
        Map<String, Object> configs = new HashMap<>();
        configs.put("sasl.oauthbearer.jwks.endpoint.url", keySet);
        configs.put("sasl.oauthbearer.clock.skew.seconds", 30);
        configs.put("sasl.oauthbearer.scope.claim.name", "scope");
        configs.put("sasl.oauthbearer.sub.claim.name", "sub");
        configs.put("sasl.oauthbearer.expected.audience", List.of());
        settings.forEach((key, value) ->
            configs.put(key, key.endsWith("audience") ? List.of(value.split(",")) : value));
        BrokerJwtValidator validator = new BrokerJwtValidator();
        validator.configure(configs, "OAUTHBEARER", entries(""));
        Object consumer = field(validator, BrokerJwtValidator.class, "jwtConsumer");
        for (Object one : (List<?>) field(consumer, JwtConsumer.class, "validators"))
            if (one instanceof NumericDateValidator)
                ((NumericDateValidator) one).setEvaluationTime(NumericDate.fromSeconds(nowSeconds));
        return shown(validator.validate(new String(input, StandardCharsets.UTF_8)));
    }

    private static String answer(String kind, Map<String, String> settings, byte[] input) throws Exception {
        switch (kind) {
            case "initial": return initial(input);
            case "unsecured": return unsecured(settings, input);
            case "signed": return signed(settings, input);
            default: throw new IllegalArgumentException(kind);
        }
    }

    public static void main(String[] arguments) {
        nowSeconds = Long.parseLong(arguments[0]);
        keySet = arguments[1];
        System.setProperty("org.apache.kafka.sasl.oauthbearer.allowed.urls", keySet);
        Scanner lines = new Scanner(System.in, StandardCharsets.UTF_8);
        while (lines.hasNextLine()) {
            String[] fields = lines.nextLine().split(" ", 3);
            Map<String, String> settings = new TreeMap<>();
            for (String line : new String(Base64.getDecoder().decode(fields[1]), StandardCharsets.UTF_8).split("\n"))
                if (line.contains("="))
                    settings.put(line.substring(0, line.indexOf('=')), line.substring(line.indexOf('=') + 1));
            try {
                System.out.println("ok\t" + answer(fields[0], settings, Base64.getDecoder().decode(fields[2])));
            } catch (Throwable e) {
                System.out.println("no\t" + encoded(e.getClass().getSimpleName() + ": " + e.getMessage()));
            }
        }
    }
}
