package aftershock;

import java.lang.reflect.Field;
import java.lang.reflect.Method;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Map;
import java.util.concurrent.Callable;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.common.KafkaException;
import org.apache.kafka.common.errors.InterruptException;
import org.apache.kafka.common.errors.TimeoutException;

/** Carries out the orders about transactions: begin, commit, abort, and a new producer with the same id. */
final class Transactions {
    private final Pipe pipe;
    private final Traffic traffic;
    private final Callable<KafkaProducer<byte[], byte[]>> opener;
    private KafkaProducer<byte[], byte[]> producer;

    Transactions(
            Pipe pipe,
            Traffic traffic,
            Callable<KafkaProducer<byte[], byte[]>> opener,
            KafkaProducer<byte[], byte[]> producer) {
        this.pipe = pipe;
        this.traffic = traffic;
        this.opener = opener;
        this.producer = producer;
    }

    /** Get a producer id, which ends an open transaction of the transactional id, however long that takes. */
    static void init(KafkaProducer<?, ?> producer) {
        while (true) {
            try {
                producer.initTransactions();
                return;
            } catch (TimeoutException notYet) {
                // Kafka's documentation: the call may be repeated
            }
        }
    }

    void obey(String order) {
        boolean commits = order.equals("commit_transaction");
        boolean mayEnd = commits && !State.of(producer).hasError();
        try {
            switch (order) {
                case "begin_transaction" -> producer.beginTransaction();
                case "commit_transaction" -> producer.commitTransaction();
                case "abort_transaction" -> producer.abortTransaction();
                case "reopen_producer" -> reopen();
                default -> throw new IllegalArgumentException("there is no order " + order);
            }
        } catch (TimeoutException | InterruptException unknown) {
            say(order, "error", Failure.nameOf(unknown), "then", "repeat");
            return;
        } catch (KafkaException | IllegalStateException error) {
            String then = commits && State.of(producer).isAbortable() ? "abort" : "reopen";
            say(order, "error", Failure.nameOf(error), "then", then, "in_doubt", mayEnd);
            return;
        }
        if (order.equals("begin_transaction")) {
            State state = State.of(producer);
            say(order, "producer_id", state.producerId(), "epoch", state.epoch(), "version", state.version());
        } else {
            say(order);
        }
    }

    private void say(String order, Object... details) {
        List<Object> all = new ArrayList<>(List.of("did", order));
        all.addAll(Arrays.asList(details));
        pipe.say("transacted", all.toArray());
    }

    private void reopen() {
        traffic.change(Map::of); // closing removes the metrics of connections
        producer.close(Duration.ZERO);
        try {
            producer = opener.call();
        } catch (RuntimeException error) {
            throw error;
        } catch (Exception error) {
            throw new KafkaException(error);
        }
        traffic.change(producer::metrics);
    }

    /** What KafkaProducer knows of its transaction, and tells nobody: the fields of its TransactionManager. */
    private record State(Object manager) {
        static State of(KafkaProducer<?, ?> producer) {
            return new State(read(producer, "transactionManager"));
        }

        boolean hasError() {
            return (boolean) call("hasError");
        }

        boolean isAbortable() {
            return (boolean) call("hasAbortableError");
        }

        long producerId() {
            return (long) read(read(manager, "producerIdAndEpoch"), "producerId");
        }

        int epoch() {
            return (short) read(read(manager, "producerIdAndEpoch"), "epoch");
        }

        /** Return the version of the protocol (KIP-890); Kafka's clients before 4.0 only have version 1. */
        int version() {
            try {
                return (boolean) call("isTransactionV2Enabled") ? 2 : 1;
            } catch (KafkaException older) {
                return 1;
            }
        }

        private Object call(String name) {
            try {
                Method method = manager.getClass().getDeclaredMethod(name);
                method.setAccessible(true);
                return method.invoke(manager);
            } catch (ReflectiveOperationException error) {
                throw new KafkaException("Kafka's TransactionManager has no method " + name, error);
            }
        }

        private static Object read(Object owner, String name) {
            try {
                Field field = owner.getClass().getDeclaredField(name);
                field.setAccessible(true);
                return field.get(owner);
            } catch (ReflectiveOperationException error) {
                throw new KafkaException("Kafka's " + owner.getClass().getName() + " has no field " + name, error);
            }
        }
    }
}
