import java.nio.charset.StandardCharsets;
import java.util.Arrays;
import java.util.Properties;
import java.util.TreeSet;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.KeyValue;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.errors.StreamsUncaughtExceptionHandler.StreamThreadExceptionResponse;
import org.apache.kafka.streams.kstream.Consumed;
import org.apache.kafka.streams.kstream.Grouped;
import org.apache.kafka.streams.kstream.Materialized;
import org.apache.kafka.streams.kstream.Produced;

/**
 * Kafka Streams' word count, at least once: Words INPUT OUTPUT key=value ...
 *
 * A record "NUMBER word word ..." counts each of its words. What a killed instance did may be done again, so a word's count is that of
 * the different numbers that it was seen with. A line "fail" on stdin lets the thread that processes the next record fail, which
 * another replaces. Says "RUNNING" on stdout whenever the application runs.
 */
public final class Words {
    private static volatile boolean fails;

    public static void main(String[] args) throws Exception {
        Properties settings = new Properties();
        for (String field : Arrays.copyOfRange(args, 2, args.length)) {
            int at = field.indexOf('=');
            settings.put(field.substring(0, at), field.substring(at + 1));
        }
        settings.put("default.key.serde", Serdes.StringSerde.class);
        settings.put("default.value.serde", Serdes.StringSerde.class);
        KafkaStreams streams = new KafkaStreams(counting(args[0], args[1]).build(), settings);
        streams.setUncaughtExceptionHandler(e -> StreamThreadExceptionResponse.REPLACE_THREAD);
        streams.setStateListener((now, before) -> {
            System.out.println(now);
            System.out.flush();
        });
        Runtime.getRuntime().addShutdownHook(new Thread(streams::close));
        streams.start();
        java.io.BufferedReader in = new java.io.BufferedReader(new java.io.InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            fails = true;
        }
        System.exit(0);
    }

    private static StreamsBuilder counting(String input, String output) {
        StreamsBuilder builder = new StreamsBuilder();
        builder.stream(input, Consumed.with(Serdes.String(), Serdes.String()))
            .flatMap((key, line) -> Words.words(line))
            .groupByKey(Grouped.with(Serdes.String(), Serdes.String()))
            .aggregate(() -> "", (word, number, numbers) -> with(numbers, number), Materialized.with(Serdes.String(), Serdes.String()))
            .toStream()
            .mapValues(numbers -> Integer.toString(numbers.split(",").length))
            .to(output, Produced.with(Serdes.String(), Serdes.String()));
        return builder;
    }

    private static Iterable<KeyValue<String, String>> words(String line) {
        if (fails) {
            fails = false;
            throw new IllegalStateException("as it was told to");
        }
        String[] parts = line.split(" ");
        return Arrays.stream(parts).skip(1).map(word -> new KeyValue<>(word, parts[0]))::iterator;
    }

    private static String with(String numbers, String number) {
        TreeSet<String> all = new TreeSet<>();
        if (!numbers.isEmpty()) {
            all.addAll(Arrays.asList(numbers.split(",")));
        }
        all.add(number);
        return String.join(",", all);
    }
}
