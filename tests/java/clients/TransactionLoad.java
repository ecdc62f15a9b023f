import java.util.Map;
import java.util.Properties;
import java.util.concurrent.atomic.AtomicLong;
import org.apache.kafka.clients.consumer.ConsumerGroupMetadata;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.StringSerializer;

/**
 * Commits one transaction after the other: BOOTSTRAP TOPIC PARTITIONS PRODUCERS RECORDS SECONDS WARM_SECONDS
 * Each has so many records over the partitions, and an offset of a group. Prints "begin", once it is warm, then "end"
 * and the number of transactions in between.
 */
public class TransactionLoad {
    private static final AtomicLong COUNT = new AtomicLong();
    private static volatile boolean over;

    private static void commits(String[] arguments, int number) {
        Properties settings = new Properties();
        settings.put("bootstrap.servers", arguments[0]);
        settings.put("transactional.id", "java-load-" + number);
        settings.put("linger.ms", "5");
        int partitions = Integer.parseInt(arguments[2]);
        int records = Integer.parseInt(arguments[4]);
        String value = "x".repeat(100);
        try (KafkaProducer<String, String> producer =
                 new KafkaProducer<>(settings, new StringSerializer(), new StringSerializer())) {
            producer.initTransactions();
            for (long count = 0; !over; count++) {
                producer.beginTransaction();
                for (int record = 0; record < records; record++) {
                    producer.send(new ProducerRecord<>(arguments[1], record % partitions, null, value));
                }
                producer.sendOffsetsToTransaction(
                    Map.of(new TopicPartition(arguments[1], 0), new OffsetAndMetadata(count)),
                    new ConsumerGroupMetadata("java-load-" + number));
                producer.commitTransaction();
                COUNT.incrementAndGet();
            }
        }
    }

    public static void main(String[] arguments) throws Exception {
        Thread[] threads = new Thread[Integer.parseInt(arguments[3])];
        for (int number = 0; number < threads.length; number++) {
            int own = number;
            threads[number] = new Thread(() -> commits(arguments, own));
            threads[number].start();
        }
        Thread.sleep(Long.parseLong(arguments[6]) * 1000);
        long before = COUNT.get();
        System.out.println("begin");
        Thread.sleep(Long.parseLong(arguments[5]) * 1000);
        System.out.println("end " + (COUNT.get() - before));
        over = true;
        for (Thread thread : threads) {
            thread.join();
        }
    }
}
