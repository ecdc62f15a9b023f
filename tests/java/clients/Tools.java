import java.io.BufferedInputStream;
import java.io.BufferedOutputStream;
import java.io.ByteArrayInputStream;
import java.io.ByteArrayOutputStream;
import java.io.DataInputStream;
import java.io.DataOutputStream;
import java.io.FileDescriptor;
import java.io.FileOutputStream;
import java.io.IOException;
import java.io.InputStream;
import java.io.OutputStream;
import java.io.PrintStream;
import java.lang.reflect.InvocationTargetException;
import java.nio.charset.Charset;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.HashSet;
import java.util.List;
import java.util.Set;
import org.apache.kafka.common.utils.Exit;

/**
 * Apache Kafka's command-line tools, one after the other in one Java machine, which starts once for all of them.
 *
 * A request on stdin is a class, the number of its arguments, the arguments and what the tool reads on its stdin; the answer on stdout
 * is the tool's status, what it wrote to stdout and to stderr, and whether the machine is as before: it is not where a tool left a
 * thread behind. Numbers are four bytes, and everything else has its length in front of it.
 */
public final class Tools {
    private static final DataOutputStream ANSWERS = new DataOutputStream(new BufferedOutputStream(new FileOutputStream(FileDescriptor.out)));
    private static final Told OUT = new Told();
    private static final Told ERR = new Told();
    private static volatile boolean isRunning;

    /** What a tool leaves with, in place of the machine's end. */
    private static final class Left extends Error {
        private Left() {
            super(null, null, false, false);
        }
    }

    /** Takes what is printed, until nobody listens any more. */
    private static final class Told extends OutputStream {
        private ByteArrayOutputStream taken = new ByteArrayOutputStream();
        private boolean isDeaf;

        @Override
        public synchronized void write(int value) {
            if (!isDeaf) taken.write(value);
        }

        @Override
        public synchronized void write(byte[] bytes, int first, int count) {
            if (!isDeaf) taken.write(bytes, first, count);
        }

        synchronized void begin() {
            isDeaf = false;
            taken = new ByteArrayOutputStream();
        }

        synchronized void end() {
            isDeaf = true;
        }

        synchronized byte[] all() {
            return taken.toByteArray();
        }
    }

    public static void main(String[] args) throws Exception {
        DataInputStream requests = new DataInputStream(new BufferedInputStream(System.in));
        System.setOut(new PrintStream(OUT, true, Charset.defaultCharset()));
        System.setErr(new PrintStream(ERR, true, Charset.defaultCharset()));
        Runtime.getRuntime().addShutdownHook(new Thread(Tools::ended));
        for (byte[] name = next(requests); name != null; name = next(requests)) {
            String[] arguments = new String[requests.readInt()];
            for (int number = 0; number < arguments.length; number++) arguments[number] = new String(next(requests), StandardCharsets.UTF_8);
            InputStream input = new ByteArrayInputStream(next(requests));
            Set<Thread> before = threads();
            isRunning = true;
            int status = run(new String(name, StandardCharsets.UTF_8), arguments, input);
            isRunning = false;
            Set<Thread> left = threads();
            left.removeAll(before);
            left.removeIf(thread -> !thread.getName().contains("kafka") && thread.isDaemon());
            answer(status, left.isEmpty());
        }
    }

    /** Runs a tool as Java does: the hooks that it has for its end run at its end. */
    private static int run(String name, String[] arguments, InputStream input) {
        List<Runnable> hooks = new ArrayList<>();
        List<Integer> statuses = new ArrayList<>();
        Exit.Procedure leave = (status, message) -> {
            synchronized (statuses) {
                statuses.add(status); // of several, the first: another is the tool's answer to what is thrown here
            }
            OUT.end();
            ERR.end();
            throw new Left();
        };
        Exit.setExitProcedure(leave);
        Exit.setHaltProcedure(leave);
        Exit.setShutdownHookAdder((what, hook) -> hooks.add(hook));
        System.setIn(input);
        OUT.begin();
        ERR.begin();
        int status = 0;
        try {
            Class.forName(name).getMethod("main", String[].class).invoke(null, (Object) arguments);
        } catch (InvocationTargetException e) {
            if (!(e.getCause() instanceof Left)) {
                System.err.print("Exception in thread \"main\" ");
                e.getCause().printStackTrace();
                status = 1;
            }
        } catch (ReflectiveOperationException e) {
            e.printStackTrace();
            status = 1;
        }
        for (Runnable hook : hooks) {
            try {
                hook.run();
            } catch (RuntimeException e) {
                e.printStackTrace();
            }
        }
        OUT.end();
        ERR.end();
        synchronized (statuses) {
            return statuses.isEmpty() ? status : statuses.get(0);
        }
    }

    private static Set<Thread> threads() {
        return new HashSet<>(Thread.getAllStackTraces().keySet());
    }

    /** Tells what a tool had said that ended the machine itself; its status is the machine's. */
    private static void ended() {
        if (!isRunning) return;
        try {
            answer(-1, false);
        } catch (IOException e) {
            Runtime.getRuntime().halt(70);
        }
    }

    private static void answer(int status, boolean isAsBefore) throws IOException {
        ANSWERS.writeInt(status);
        for (byte[] told : List.of(OUT.all(), ERR.all())) {
            ANSWERS.writeInt(told.length);
            ANSWERS.write(told);
        }
        ANSWERS.writeInt(isAsBefore ? 1 : 0);
        ANSWERS.flush();
    }

    /** The next bytes, null where there are no more requests. */
    private static byte[] next(DataInputStream requests) throws IOException {
        int first = requests.read();
        if (first < 0) return null;
        int length = first << 24 | requests.readUnsignedByte() << 16 | requests.readUnsignedShort();
        return requests.readNBytes(length);
    }
}
