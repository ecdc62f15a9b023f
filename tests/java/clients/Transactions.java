import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.util.Map;
import java.util.Properties;
import org.apache.kafka.clients.consumer.ConsumerGroupMetadata;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.StringSerializer;

/**
 * One transactional producer, with settings as arguments (key=value). Lines of its input are what it does, each
 * answered with a line: "=" or "!" and the class of the exception:
 * init | begin | send TOPIC PARTITION VALUE | flush | offset TOPIC PARTITION OFFSET GROUP | commit | abort
 */
public class Transactions {
    private static KafkaProducer<String, String> producer;

    private static void offset(String topic, int partition, long offset, String group) {
        producer.sendOffsetsToTransaction(
            Map.of(new TopicPartition(topic, partition), new OffsetAndMetadata(offset)),
            new ConsumerGroupMetadata(group));
    }

    private static void does(String[] words) throws Exception {
        switch (words[0]) {
            case "init" -> producer.initTransactions();
            case "begin" -> producer.beginTransaction();
            case "send" -> producer.send(new ProducerRecord<>(words[1], Integer.parseInt(words[2]), null, words[3]));
            case "flush" -> producer.flush();
            case "offset" -> offset(words[1], Integer.parseInt(words[2]), Long.parseLong(words[3]), words[4]);
            case "commit" -> producer.commitTransaction();
            case "abort" -> producer.abortTransaction();
            default -> throw new IllegalArgumentException(words[0]);
        }
    }

    public static void main(String[] arguments) throws Exception {
        Properties settings = new Properties();
        for (String one : arguments) {
            int at = one.indexOf('=');
            settings.put(one.substring(0, at), one.substring(at + 1));
        }
        producer = new KafkaProducer<>(settings, new StringSerializer(), new StringSerializer());
        BufferedReader input = new BufferedReader(new InputStreamReader(System.in));
        for (String line = input.readLine(); line != null; line = input.readLine()) {
            String[] words = line.split(" ", -1);
            try {
                does(words);
                System.out.println("=");
            } catch (Exception e) {
                System.out.println("!" + e.getClass().getSimpleName() + " " + e.getMessage());
            }
        }
    }
}
