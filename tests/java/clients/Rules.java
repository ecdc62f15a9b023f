import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.net.InetAddress;
import java.nio.charset.StandardCharsets;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import org.apache.kafka.common.Uuid;
import org.apache.kafka.common.acl.AclOperation;
import org.apache.kafka.common.acl.AclPermissionType;
import org.apache.kafka.common.metrics.Metrics;
import org.apache.kafka.common.metrics.internals.PluginMetricsImpl;
import org.apache.kafka.common.resource.PatternType;
import org.apache.kafka.common.resource.ResourcePattern;
import org.apache.kafka.common.resource.ResourceType;
import org.apache.kafka.common.security.auth.KafkaPrincipal;
import org.apache.kafka.common.security.auth.SecurityProtocol;
import org.apache.kafka.metadata.authorizer.StandardAcl;
import org.apache.kafka.metadata.authorizer.StandardAuthorizer;
import org.apache.kafka.server.authorizer.Action;
import org.apache.kafka.server.authorizer.AuthorizableRequestContext;
import org.apache.kafka.server.authorizer.AuthorizationResult;

/**
 * Kafka's own authorizer on stdin and stdout, fields separated by tabs.
 *
 * "new DEFAULT" forgets all ACLs; "acl TYPE NAME PATTERN PRINCIPAL HOST OPERATION PERMISSION" adds one; "load" has the authorizer take
 * them. "ask KIND NAME HOST OPERATION TYPE RESOURCE" answers 1 or 0; "some KIND NAME HOST OPERATION TYPE" asks about any resource.
 */
public final class Rules {
    public static void main(String[] args) throws Exception {
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        StandardAuthorizer authorizer = null;
        Map<Uuid, StandardAcl> acls = new HashMap<>();
        StringBuilder answers = new StringBuilder();
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            String[] fields = line.split("\t", -1);
            switch (fields[0]) {
                case "new" -> {
                    authorizer = new StandardAuthorizer();
                    authorizer.configure(Map.of("allow.everyone.if.no.acl.found", fields[1]));
                    authorizer.withPluginMetrics(new PluginMetricsImpl(new Metrics(), Map.of()));
                    acls.clear();
                }
                case "acl" -> acls.put(Uuid.randomUuid(), new StandardAcl(
                    ResourceType.fromCode(Byte.parseByte(fields[1])), fields[2], PatternType.fromCode(Byte.parseByte(fields[3])),
                    fields[4], fields[5], AclOperation.fromCode(Byte.parseByte(fields[6])),
                    AclPermissionType.fromCode(Byte.parseByte(fields[7]))));
                case "load" -> {
                    authorizer.loadSnapshot(acls);
                    authorizer.completeInitialLoad();
                }
                case "ask" -> {
                    Action action = new Action(AclOperation.fromCode(Byte.parseByte(fields[4])),
                        new ResourcePattern(ResourceType.fromCode(Byte.parseByte(fields[5])), fields[6], PatternType.LITERAL), 1, true, true);
                    answers.append(is(authorizer.authorize(client(fields), List.of(action)).get(0)));
                }
                case "some" -> answers.append(is(authorizer.authorizeByResourceType(client(fields),
                    AclOperation.fromCode(Byte.parseByte(fields[4])), ResourceType.fromCode(Byte.parseByte(fields[5])))));
                default -> throw new IllegalArgumentException(line);
            }
        }
        System.out.println(answers);
    }

    private static char is(AuthorizationResult result) {
        return result == AuthorizationResult.ALLOWED ? '1' : '0';
    }

    private static AuthorizableRequestContext client(String[] fields) throws Exception {
        KafkaPrincipal principal = new KafkaPrincipal(fields[1], fields[2]);
        InetAddress address = InetAddress.getByName(fields[3]);
        return new AuthorizableRequestContext() {
            @Override public String listenerName() { return "L"; }
            @Override public SecurityProtocol securityProtocol() { return SecurityProtocol.PLAINTEXT; }
            @Override public KafkaPrincipal principal() { return principal; }
            @Override public InetAddress clientAddress() { return address; }
            @Override public int requestType() { return 3; }
            @Override public int requestVersion() { return 0; }
            @Override public String clientId() { return "test"; }
            @Override public int correlationId() { return 0; }
        };
    }
}
