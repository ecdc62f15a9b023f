import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.util.concurrent.TimeUnit;
import org.apache.kafka.common.MetricName;
import org.apache.kafka.common.metrics.MetricConfig;
import org.apache.kafka.common.metrics.Metrics;
import org.apache.kafka.common.metrics.Quota;
import org.apache.kafka.common.metrics.QuotaViolationException;
import org.apache.kafka.common.metrics.Sensor;
import org.apache.kafka.common.metrics.stats.Rate;
import org.apache.kafka.common.metrics.stats.SimpleRate;
import org.apache.kafka.common.metrics.stats.TokenBucket;
import org.apache.kafka.common.utils.Time;
import org.apache.kafka.server.quota.QuotaUtils;

/**
 * Apache Kafka's quotas as a judge. Each line of the input is a history: kind, windows, their size in ms, the limit, and
 * then value:ms of each event. Each line of the output has what each event brings: for "rate" the throttle in ms, after
 * "take-back" the value is uncounted again where it is throttled; "simple" 1 where the limit is exceeded; "tokens" and
 * "strict" the throttle, strict ones with "no" before it where nothing was taken.
 */
public final class Quotas {
    public static void main(String[] arguments) throws Exception {
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in));
        int number = 0;
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            System.out.println(answer(line.split(" "), number++));
        }
    }

    private static String answer(String[] words, int number) {
        String kind = words[0];
        MetricConfig config = new MetricConfig()
            .samples(Integer.parseInt(words[1]))
            .timeWindow(Long.parseLong(words[2]), TimeUnit.MILLISECONDS)
            .quota(Quota.upperBound(Double.parseDouble(words[3])));
        StringBuilder out = new StringBuilder();
        try (Metrics metrics = new Metrics(new MetricConfig(), Time.SYSTEM)) {
            Sensor sensor = metrics.sensor("sensor" + number);
            MetricName name = metrics.metricName("metric" + number, "group");
            boolean isBucket = kind.equals("tokens") || kind.equals("strict");
            sensor.add(name, isBucket ? new TokenBucket() : kind.equals("simple") ? new SimpleRate() : new Rate(), config);
            for (int n = 4; n < words.length; n++) {
                String[] event = words[n].split(":");
                double value = Double.parseDouble(event[0]);
                long ms = Long.parseLong(event[1]);
                out.append(n == 4 ? "" : " ").append(one(kind, sensor, value, ms));
            }
        }
        return out.toString();
    }

    private static String one(String kind, Sensor sensor, double value, long ms) {
        try {
            if (kind.equals("strict")) {
                sensor.checkQuotas(ms);
                sensor.record(value, ms, false);
            } else {
                sensor.record(value, ms, true);
            }
            return "0";
        } catch (QuotaViolationException e) {
            switch (kind) {
                case "simple":
                    return "1";
                case "strict":
                    return "no" + Math.round(-e.value() / e.bound() * 1000);
                case "tokens":
                    return "" + Math.round(-e.value() / e.bound() * 1000);
                case "take-back":
                    long throttle = QuotaUtils.throttleTime(e, ms);
                    if (throttle > 0) {
                        sensor.record(-value, ms, false);
                    }
                    return "" + throttle;
                default:
                    return "" + QuotaUtils.throttleTime(e, ms);
            }
        }
    }
}
