import java.util.Map;
import java.util.TreeMap;

import org.apache.kafka.common.config.ConfigDef;
import org.apache.kafka.server.config.AbstractKafkaConfig;
import org.apache.kafka.storage.internals.log.LogConfig;

/** Prints Kafka's own settings as lines `node NAME TYPE RANGE` and `topic …`, from the definitions that brokers use. */
public class SettingNames {
    public static void main(String[] arguments) throws ReflectiveOperationException {
        Map<String, ConfigDef.ConfigKey> node = new TreeMap<>(AbstractKafkaConfig.CONFIG_DEF.configKeys());
        ConfigDef quotas = (ConfigDef) quotaClass().getMethod("brokerQuotaConfigs").invoke(null);
        node.putAll(quotas.configKeys());
        print("node", node);
        print("topic", new TreeMap<>(LogConfig.configDefCopy().configKeys()));
    }

    private static Class<?> quotaClass() throws ClassNotFoundException {
        try {
            return Class.forName("org.apache.kafka.server.config.QuotaConfig");
        } catch (ClassNotFoundException error) {
            return Class.forName("org.apache.kafka.server.config.QuotaConfigs"); // Kafka 3.9
        }
    }

    private static void print(String kind, Map<String, ConfigDef.ConfigKey> keys) {
        keys.forEach((name, key) -> System.out.println(kind + " " + name + " " + key.type() + range(key.validator)));
    }

    /** The permitted values, such as ` [1,...]` or ` [compact, delete]`; empty where a validator does not list them. */
    private static String range(ConfigDef.Validator validator) {
        boolean listed = validator instanceof ConfigDef.Range || validator instanceof ConfigDef.ValidString
                || validator instanceof ConfigDef.ValidList;
        return listed && validator.toString().startsWith("[") ? " " + validator : "";
    }
}
