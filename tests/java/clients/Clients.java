import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Base64;
import java.util.Collection;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.Set;
import java.util.concurrent.Future;
import java.util.regex.Pattern;
import java.util.stream.Collectors;
import org.apache.kafka.clients.consumer.CommitFailedException;
import org.apache.kafka.clients.consumer.ConsumerRebalanceListener;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.ConsumerRecords;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.SubscriptionPattern;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.clients.producer.RecordMetadata;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.errors.RebalanceInProgressException;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/**
 * Members of consumer groups and a producer of the Java client, driven by lines of fields that tabs separate.
 *
 * Commands on stdin:
 *   join NAME names|pattern|re2 TOPICS key=value ...   starts a member on a thread of its own
 *   leave NAME                                         closes it
 *   send TOPIC key=value ... | BASE64KEY ...           sends one record per key
 * Events on stdout:
 *   has NAME TOPIC-PARTITION ...                       what the member is assigned, whenever that changed
 *   takes|gives NAME TOPIC-PARTITION ...               the calls of its ConsumerRebalanceListener
 *   read NAME TOPIC PARTITION OFFSET VALUE
 *   failed NAME CLASS MESSAGE
 *   left NAME
 *   sent PARTITION ...                                 one for each key, in order
 *
 * The end of stdin, or SIGTERM, closes all members. A record is told of before the poll that commits it.
 */
public final class Clients {
    private static final PrintStream OUT = new PrintStream(new java.io.FileOutputStream(java.io.FileDescriptor.out), false, StandardCharsets.UTF_8);
    private static final Map<String, Member> MEMBERS = new HashMap<>();

    public static void main(String[] args) throws Exception {
        Runtime.getRuntime().addShutdownHook(new Thread(Clients::leaveAll));
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            String[] fields = line.split("\t", -1);
            switch (fields[0]) {
                case "join": join(fields); break;
                case "leave": member(fields[1]).leave(); break;
                case "send": send(fields); break;
                default: throw new IOException("no such command: " + line);
            }
        }
    }

    private static synchronized void join(String[] fields) {
        Member member = new Member(fields[1], fields[2], fields[3], settings(fields, 4, fields.length));
        MEMBERS.put(fields[1], member);
        member.start();
    }

    private static synchronized Member member(String name) {
        return MEMBERS.get(name);
    }

    private static void leaveAll() {
        List<Member> all;
        synchronized (Clients.class) {
            all = new ArrayList<>(MEMBERS.values());
        }
        all.forEach(Member::leave);
        for (Member member : all) {
            try {
                member.join();
            } catch (InterruptedException e) {
                Thread.currentThread().interrupt();
            }
        }
    }

    private static Properties settings(String[] fields, int from, int to) {
        Properties settings = new Properties();
        for (String field : Arrays.copyOfRange(fields, from, to)) {
            int at = field.indexOf('=');
            settings.put(field.substring(0, at), field.substring(at + 1));
        }
        return settings;
    }

    private static void send(String[] fields) throws Exception {
        int keys = Arrays.asList(fields).indexOf("|");
        Properties settings = settings(fields, 2, keys);
        try (KafkaProducer<byte[], byte[]> producer =
                new KafkaProducer<>(settings, new ByteArraySerializer(), new ByteArraySerializer())) {
            List<Future<RecordMetadata>> sent = new ArrayList<>();
            for (String key : Arrays.copyOfRange(fields, keys + 1, fields.length)) {
                sent.add(producer.send(new ProducerRecord<>(fields[1], Base64.getDecoder().decode(key), new byte[0])));
            }
            List<String> partitions = new ArrayList<>();
            for (Future<RecordMetadata> one : sent) {
                partitions.add(Integer.toString(one.get().partition()));
            }
            tell("sent", partitions);
        }
    }

    private static void tell(String event, Collection<String> fields) {
        synchronized (OUT) {
            OUT.println(event + "\t" + String.join("\t", fields));
            OUT.flush();
        }
    }

    private static final class Member extends Thread implements ConsumerRebalanceListener {
        private final String subscription;
        private final String topics;
        private final Properties settings;
        private volatile boolean isLeaving;

        Member(String name, String subscription, String topics, Properties settings) {
            super(name);
            this.subscription = subscription;
            this.topics = topics;
            this.settings = settings;
        }

        void leave() {
            isLeaving = true;
        }

        @Override
        public void run() {
            try (KafkaConsumer<byte[], byte[]> consumer =
                    new KafkaConsumer<>(settings, new ByteArrayDeserializer(), new ByteArrayDeserializer())) {
                subscribe(consumer);
                poll(consumer);
            } catch (Exception e) {
                tell("failed", List.of(getName(), e.getClass().getSimpleName(), String.valueOf(e.getMessage()).replaceAll("\\s", " ")));
            }
            tell("left", List.of(getName()));
        }

        private void subscribe(KafkaConsumer<byte[], byte[]> consumer) {
            switch (subscription) {
                case "names": consumer.subscribe(Arrays.asList(topics.split(",")), this); break;
                case "pattern": consumer.subscribe(Pattern.compile(topics), this); break;
                case "re2": consumer.subscribe(new SubscriptionPattern(topics), this); break;
                default: throw new IllegalArgumentException(subscription);
            }
        }

        private void poll(KafkaConsumer<byte[], byte[]> consumer) {
            boolean commits = "false".equals(settings.getProperty("enable.auto.commit"));
            Set<TopicPartition> had = null;
            while (!isLeaving) {
                ConsumerRecords<byte[], byte[]> records = consumer.poll(Duration.ofMillis(100));
                for (ConsumerRecord<byte[], byte[]> one : records) {
                    String value = one.value() == null ? "" : new String(one.value(), StandardCharsets.UTF_8);
                    tell("read", List.of(getName(), one.topic(), Integer.toString(one.partition()), Long.toString(one.offset()), value));
                }
                Set<TopicPartition> has = Set.copyOf(consumer.assignment());
                if (!has.equals(had)) {
                    tell("has", named(has));
                    had = has;
                }
                if (commits && !records.isEmpty()) {
                    commit(consumer);
                }
            }
        }

        /** What a rebalance refuses is read again by the next owner. */
        private static void commit(KafkaConsumer<byte[], byte[]> consumer) {
            try {
                consumer.commitSync();
            } catch (CommitFailedException | RebalanceInProgressException e) {
                System.err.println(e);
            }
        }

        private List<String> named(Collection<TopicPartition> partitions) {
            List<String> named = partitions.stream().map(TopicPartition::toString).sorted().collect(Collectors.toList());
            named.add(0, getName());
            return named;
        }

        @Override
        public void onPartitionsAssigned(Collection<TopicPartition> partitions) {
            tell("takes", named(partitions));
        }

        @Override
        public void onPartitionsRevoked(Collection<TopicPartition> partitions) {
            tell("gives", named(partitions));
        }
    }
}
