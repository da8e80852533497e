package aftershock;

import java.util.concurrent.CompletionException;
import java.util.concurrent.ExecutionException;
import org.apache.kafka.common.protocol.Errors;

/** An exception of Kafka's client, by the name of its error code. */
final class Failure {
    private Failure() {}

    static String nameOf(Throwable error) {
        boolean wrapped = error instanceof CompletionException || error instanceof ExecutionException;
        return Errors.forException(wrapped && error.getCause() != null ? error.getCause() : error).name();
    }
}
