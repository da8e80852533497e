'use strict';

// Connection of KafkaJS to the cluster: the arm's settings, the leaders of the topics, and the bytes of each broker.

const net = require('node:net');
const { CompressionTypes, Kafka, logLevel } = require('kafkajs');
const { die, persist, say } = require('./protocol');

// Settings that an arm can have, by Kafka's names, and the options that they set.
const SETTINGS = {
  'request.timeout.ms': ['client.requestTimeout'],
  'socket.connection.setup.timeout.ms': ['client.connectionTimeout'],
  'retry.backoff.ms': ['retry.initialRetryTime'],
  'retry.backoff.max.ms': ['retry.maxRetryTime'],
  'metadata.max.age.ms': ['producer.metadataMaxAge', 'consumer.metadataMaxAge'],
  'max.in.flight.requests.per.connection': ['producer.maxInFlightRequests'],
  'compression.type': ['request.compression'],
  'batch.size': ['queue.batchBytes'],
  'buffer.memory': ['queue.bufferBytes'],
  'session.timeout.ms': ['consumer.sessionTimeout'],
  'heartbeat.interval.ms': ['consumer.heartbeatInterval'],
  'consumer.restart': ['program.restart'], // of a consumer that KafkaJS stops for good
  'rebalance.timeout.ms': ['consumer.rebalanceTimeout'],
  'fetch.min.bytes': ['consumer.minBytes'],
  'fetch.max.bytes': ['consumer.maxBytes'],
  'fetch.max.wait.ms': ['consumer.maxWaitTimeInMs'],
  'max.partition.fetch.bytes': ['consumer.maxBytesPerPartition'],
};
// Values of the settings that are no integers
const WORDS = {
  'compression.type': { none: CompressionTypes.None, gzip: CompressionTypes.GZIP },
  'consumer.restart': { always: true, never: false },
};

// Return the options of KafkaJS, and of this program's queues, that the arm's settings select.
function optionsOf(settings) {
  const options = { client: {}, retry: {}, producer: {}, consumer: {}, request: {}, queue: {}, program: { restart: true } };
  for (const [name, setting] of Object.entries(settings)) {
    if (!Object.hasOwn(SETTINGS, name)) {
      throw new Error(`unknown setting ${name}; use ${Object.keys(SETTINGS).join(', ')}`);
    }
    const words = WORDS[name];
    if (words ? !Object.hasOwn(words, setting) : !/^\d+$/.test(setting)) {
      const expected = words ? Object.keys(words).join(' or ') : 'an integer';
      throw new Error(`the setting ${name} is ${JSON.stringify(setting)}; use ${expected}`);
    }
    for (const path of SETTINGS[name]) {
      const [owner, option] = path.split('.');
      options[owner][option] = words ? words[setting] : Number(setting);
    }
  }
  return options;
}

// Return KafkaJS's entry point. It repeats requests without a limit, because this program keeps the deadlines.
function open(start, options) {
  return new Kafka({
    brokers: start.bootstrap.split(','),
    clientId: start.client_id,
    requestTimeout: Math.max(1, Math.min(30_000, start.deadline_ms ?? 30_000)),
    ...options.client,
    retry: { initialRetryTime: 100, maxRetryTime: 1_000, ...options.retry, retries: Number.MAX_SAFE_INTEGER },
    socketFactory: countedSocket,
    logLevel: logLevel.WARN,
    logCreator: () => ({ namespace, label, log }) => {
      process.stderr.write(`${label} ${namespace}: ${log.message}${log.broker ? ` (${log.broker})` : ''}\n`);
    },
  });
}

// Return when each partition of the topics has a leader, and report traffic from then on.
async function awaitLeaders(kafka, topics) {
  const admin = kafka.admin();
  await persist(() => admin.connect());
  await persist(async () => {
    const metadata = await admin.fetchTopicMetadata({ topics: topics.map(({ name }) => name) });
    for (const { name, partitions: expected } of topics) {
      const partitions = metadata.topics.find((topic) => topic.name === name)?.partitions ?? [];
      if (partitions.filter(({ leader }) => leader >= 0).length < expected) {
        throw new Error(`some partitions of ${name} have no leader`);
      }
    }
  });
  reportTraffic(admin).catch(die);
}

const traffic = new Map(); // of each address: bytes of closed connections, and open sockets

// Open a socket as KafkaJS's own factory does, and count its bytes.
function countedSocket({ host, port, onConnect }) {
  const socket = net.connect({ host, port }, onConnect);
  socket.setKeepAlive(true, 60_000);
  const address = `${host}:${port}`;
  const counts = traffic.get(address) ?? { sent: 0, received: 0, open: new Set() };
  traffic.set(address, counts);
  counts.open.add(socket);
  socket.once('close', () => {
    counts.open.delete(socket);
    counts.sent += socket.bytesWritten;
    counts.received += socket.bytesRead;
  });
  return socket;
}

// Report each second the bytes sent to and received from each broker, whose address the cluster knows.
async function reportTraffic(admin) {
  // KafkaJS refuses the answer, which has all topics of the cluster, while one of their partitions has no leader
  const { brokers: nodes } = await persist(() => admin.describeCluster());
  await admin.disconnect();
  setInterval(() => {
    const brokers = {};
    for (const { nodeId, host, port } of nodes) {
      const { sent, received, open } = traffic.get(`${host}:${port}`) ?? { sent: 0, received: 0, open: new Set() };
      const sockets = [...open];
      brokers[nodeId] = [
        sockets.reduce((total, socket) => total + socket.bytesWritten, sent),
        sockets.reduce((total, socket) => total + socket.bytesRead, received),
      ];
    }
    say('traffic', { brokers });
  }, 1_000);
}

module.exports = { awaitLeaders, open, optionsOf };
