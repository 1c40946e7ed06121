import java.time.Duration;
import java.util.*;
import java.util.concurrent.ExecutionException;
import org.apache.kafka.clients.admin.*;
import org.apache.kafka.clients.consumer.*;
import org.apache.kafka.clients.producer.*;
import org.apache.kafka.common.*;
import org.apache.kafka.common.config.ConfigResource;
import org.apache.kafka.common.quota.*;

/** What Kafka's own Java client does with a broker, checked. Prints "OK" at the end; a failure is an exception. */
public class JavaClient {
    static final int RECORDS = 1_000;
    static String address;

    public static void main(String[] arguments) throws Exception {
        address = arguments[0];
        String topic = "java-" + UUID.randomUUID();
        try (Admin admin = Admin.create(common())) {
            administer(admin, topic);
            produce(topic);
            for (String protocol : List.of("classic", "consumer")) {
                consume(admin, topic, protocol);
            }
            transact(topic);
            quotas(admin);
            placement(admin, topic);
            admin.deleteTopics(List.of(topic)).all().get();
        }
        System.out.println("OK: the Java client");
    }

    static Map<String, Object> common() {
        return new HashMap<>(Map.of("bootstrap.servers", address, "request.timeout.ms", 20_000));
    }

    static void check(boolean condition, String what) {
        if (!condition) {
            throw new AssertionError(what);
        }
    }

    interface Condition {
        boolean holds() throws Exception;
    }

    /** Brokers may hear of a change a moment after it was made. */
    static void eventually(String what, Condition condition) throws Exception {
        long deadline = System.nanoTime() + Duration.ofSeconds(20).toNanos();
        while (!condition.holds()) {
            check(System.nanoTime() < deadline, what);
            Thread.sleep(20);
        }
    }

    interface Work {
        void run() throws Exception;
    }

    static void refused(Class<? extends Exception> error, Work work) throws Exception {
        try {
            work.run();
        } catch (ExecutionException caught) {
            check(error.isInstance(caught.getCause()), "expected " + error + ", not " + caught.getCause());
            return;
        }
        throw new AssertionError("expected " + error);
    }

    static void administer(Admin admin, String topic) throws Exception {
        admin.createTopics(List.of(new NewTopic(topic, 4, (short) 1))).all().get();
        refused(org.apache.kafka.common.errors.TopicExistsException.class,
            () -> admin.createTopics(List.of(new NewTopic(topic, 1, (short) 1))).all().get());
        TopicDescription described = admin.describeTopics(List.of(topic)).allTopicNames().get().get(topic);
        check(described.partitions().size() == 4, "4 partitions");
        check(!described.topicId().equals(Uuid.ZERO_UUID), "a topic id");
        check(!admin.describeCluster().nodes().get().isEmpty(), "brokers");
        ConfigResource resource = new ConfigResource(ConfigResource.Type.TOPIC, topic);
        AlterConfigOp set = new AlterConfigOp(new ConfigEntry("retention.ms", "3600000"), AlterConfigOp.OpType.SET);
        admin.incrementalAlterConfigs(Map.of(resource, List.of(set))).all().get();
        eventually("the config", () -> admin.describeConfigs(List.of(resource)).all().get().get(resource)
            .get("retention.ms").value().equals("3600000"));
        AlterConfigOp wrong = new AlterConfigOp(new ConfigEntry("retention.ms", "x"), AlterConfigOp.OpType.SET);
        refused(org.apache.kafka.common.errors.InvalidConfigurationException.class,
            () -> admin.incrementalAlterConfigs(Map.of(resource, List.of(wrong))).all().get());
        check(admin.describeFeatures().featureMetadata().get().finalizedFeatures().containsKey("group.version"),
            "group.version");
        check(admin.listConfigResources().all().get().contains(resource), "the topic among the resources");
    }

    static void produce(String topic) throws Exception {
        Map<String, Object> settings = common();
        settings.put("key.serializer", "org.apache.kafka.common.serialization.StringSerializer");
        settings.put("value.serializer", "org.apache.kafka.common.serialization.StringSerializer");
        settings.put("compression.type", "lz4");
        try (Producer<String, String> producer = new KafkaProducer<>(settings)) {
            for (int number = 0; number < RECORDS; number++) {
                producer.send(new ProducerRecord<>(topic, "k" + number, "" + number));
            }
            producer.flush();
        }
    }

    static KafkaConsumer<String, String> consumer(String group, String protocol) {
        Map<String, Object> settings = common();
        settings.put("key.deserializer", "org.apache.kafka.common.serialization.StringDeserializer");
        settings.put("value.deserializer", "org.apache.kafka.common.serialization.StringDeserializer");
        settings.put("group.id", group);
        settings.put("group.protocol", protocol);
        settings.put("auto.offset.reset", "earliest");
        settings.put("enable.auto.commit", false);
        settings.put("fetch.max.wait.ms", 100);
        return new KafkaConsumer<>(settings);
    }

    static long readUpTo(KafkaConsumer<String, String> consumer) {
        return consumer.assignment().stream().mapToLong(consumer::position).sum();
    }

    /** Two members share the partitions, read everything between them, commit, and leave. */
    static void consume(Admin admin, String topic, String protocol) throws Exception {
        String group = topic + "-" + protocol;
        Set<String> seen = new HashSet<>();
        try (KafkaConsumer<String, String> one = consumer(group, protocol);
             KafkaConsumer<String, String> two = consumer(group, protocol)) {
            one.subscribe(List.of(topic));
            two.subscribe(List.of(topic));
            long deadline = System.nanoTime() + Duration.ofSeconds(60).toNanos();
            // Whoever takes a partition over reads it again from where nothing was committed: before everything is read
            // by those who will commit it, their positions are not at the end.
            while (seen.size() < RECORDS || one.assignment().size() != 2 || two.assignment().size() != 2
                || readUpTo(one) + readUpTo(two) < RECORDS) {
                check(System.nanoTime() < deadline,
                    protocol + ": " + seen.size() + " records, " + one.assignment() + ", " + two.assignment());
                for (KafkaConsumer<String, String> each : List.of(one, two)) {
                    each.poll(Duration.ofMillis(50)).forEach(record -> seen.add(record.value()));
                }
            }
            one.commitSync();
            two.commitSync();
            ConsumerGroupDescription described =
                admin.describeConsumerGroups(List.of(group)).all().get().get(group);
            check(described.members().size() == 2, "two members");
            check(described.type().toString().equalsIgnoreCase(protocol), "a group of type " + protocol);
            refused(org.apache.kafka.common.errors.GroupNotEmptyException.class,
                () -> admin.deleteConsumerGroups(List.of(group)).all().get());
        }
        long committed = admin.listConsumerGroupOffsets(group).partitionsToOffsetAndMetadata().get().values().stream()
            .mapToLong(OffsetAndMetadata::offset).sum();
        check(committed == RECORDS, protocol + ": " + committed + " committed");
        check(admin.listGroups().all().get().stream().anyMatch(each -> each.groupId().equals(group)), "it is listed");
        admin.deleteConsumerGroupOffsets(group, Set.of(new TopicPartition(topic, 0))).all().get();
        admin.deleteConsumerGroups(List.of(group)).all().get();
    }

    static void transact(String topic) {
        Map<String, Object> settings = common();
        settings.put("key.serializer", "org.apache.kafka.common.serialization.StringSerializer");
        settings.put("value.serializer", "org.apache.kafka.common.serialization.StringSerializer");
        settings.put("transactional.id", topic);
        try (Producer<String, String> producer = new KafkaProducer<>(settings)) {
            producer.initTransactions();
            producer.beginTransaction();
            producer.send(new ProducerRecord<>(topic, "k", "aborted"));
            producer.abortTransaction();
            producer.beginTransaction();
            producer.send(new ProducerRecord<>(topic, "k", "committed"));
            producer.commitTransaction();
        }
        Map<String, Object> reading = common();
        reading.put("key.deserializer", "org.apache.kafka.common.serialization.StringDeserializer");
        reading.put("value.deserializer", "org.apache.kafka.common.serialization.StringDeserializer");
        reading.put("isolation.level", "read_committed");
        reading.put("auto.offset.reset", "earliest");
        Set<String> seen = new HashSet<>();
        try (KafkaConsumer<String, String> consumer = new KafkaConsumer<>(reading)) {
            List<TopicPartition> partitions =
                consumer.partitionsFor(topic).stream().map(p -> new TopicPartition(topic, p.partition())).toList();
            consumer.assign(partitions);
            consumer.seekToBeginning(partitions);
            long deadline = System.nanoTime() + Duration.ofSeconds(30).toNanos();
            while (!seen.contains("committed")) {
                check(System.nanoTime() < deadline, "the committed record");
                consumer.poll(Duration.ofMillis(100)).forEach(record -> seen.add(record.value()));
            }
        }
        check(!seen.contains("aborted"), "an aborted record was read");
    }

    static void quotas(Admin admin) throws Exception {
        ClientQuotaEntity entity = new ClientQuotaEntity(Map.of(ClientQuotaEntity.CLIENT_ID, "java-" + UUID.randomUUID()));
        ClientQuotaAlteration.Op set = new ClientQuotaAlteration.Op("producer_byte_rate", 5000.0);
        admin.alterClientQuotas(List.of(new ClientQuotaAlteration(entity, List.of(set)))).all().get();
        String name = entity.entries().get(ClientQuotaEntity.CLIENT_ID);
        ClientQuotaFilter filter = ClientQuotaFilter.containsOnly(
            List.of(ClientQuotaFilterComponent.ofEntity(ClientQuotaEntity.CLIENT_ID, name)));
        eventually("the quota", () -> Map.of(entity, Map.of("producer_byte_rate", 5000.0))
            .equals(admin.describeClientQuotas(filter).entities().get()));
        ClientQuotaAlteration.Op remove = new ClientQuotaAlteration.Op("producer_byte_rate", null);
        admin.alterClientQuotas(List.of(new ClientQuotaAlteration(entity, List.of(remove)))).all().get();
    }

    static void placement(Admin admin, String topic) throws Exception {
        TopicPartition partition = new TopicPartition(topic, 0);
        check(admin.electLeaders(ElectionType.PREFERRED, Set.of(partition)).partitions().get().get(partition)
            .orElseThrow() instanceof org.apache.kafka.common.errors.ElectionNotNeededException, "nothing to elect");
        check(admin.listPartitionReassignments().reassignments().get().isEmpty(), "nothing moves");
        List<Integer> nodes = admin.describeCluster().nodes().get().stream().map(Node::id).toList();
        long told = admin.describeLogDirs(nodes).allDescriptions().get().values().stream()
            .flatMap(directories -> directories.values().stream())
            .flatMap(directory -> directory.replicaInfos().entrySet().stream())
            .filter(entry -> entry.getKey().topic().equals(topic) && entry.getValue().size() > 0).count();
        check(told == 4, told + " of 4 partitions have a size");
    }
}
