'use strict';

// Client of docs/EXEC.md built on confluent-kafka-javascript, through its bindings of librdkafka, which KafkaJS's
// interface would hide.

const { once } = require('node:events');
const { setTimeout: sleep } = require('node:timers/promises');
const { promisify } = require('node:util');
const Kafka = require('@confluentinc/kafka-javascript');
const { version } = require('@confluentinc/kafka-javascript/package.json');
const ERROR_NAMES = require('./errors.json');
const { acked, awaitReports, begin, die, failed, giveUp, isPending, nextOrder, now, ordersUntilClose, read, say } =
  require('./protocol');

const { ERR__ASSIGN_PARTITIONS, ERR__REVOKE_PARTITIONS } = Kafka.CODES.ERRORS;

function nameOf(error) {
  return ERROR_NAMES[error.code] ?? '_FAIL';
}

// Report an error that ends nothing.
function complain(error) {
  say('error', { error: nameOf(error), detail: error.message });
}

const DESCRIBES = 'describe.topics.ms'; // a setting of this program

// Return the arm's settings of librdkafka.
function librdkafkas({ [DESCRIBES]: _, ...settings }) {
  return settings;
}

// Properties of topics: a client has those of its second configuration only, even if that is empty.
const OF_TOPICS = new Set([
  ...['acks', 'request.required.acks', 'request.timeout.ms', 'delivery.timeout.ms', 'message.timeout.ms'],
  ...['partitioner', 'auto.commit.interval.ms', 'auto.offset.reset'],
]);

// Return the two configurations of a client: the arm's settings, which `own` and the start order precede.
function configsOf(start, own) {
  const properties = Object.entries({
    'statistics.interval.ms': 1_000,
    ...librdkafkas(start.settings),
    ...own,
    'bootstrap.servers': start.bootstrap,
    'client.id': start.client_id,
    ...(start.client_rack ? { 'client.rack': start.client_rack } : {}),
  });
  return [false, true].map((isOfTopics) =>
    Object.fromEntries(properties.filter(([name]) => OF_TOPICS.has(name) === isOfTopics)),
  );
}

const counted = new Map(); // lost connections and late answers by broker, so far

function onStatistics({ message }) {
  const brokers = {};
  for (const [name, broker] of Object.entries(JSON.parse(message).brokers)) {
    const { nodeid, txbytes, rxbytes } = broker;
    if (nodeid >= 0) {
      const [sent, received] = brokers[nodeid] ?? [0, 0]; // a coordinator has a connection of its own
      brokers[nodeid] = [sent + txbytes, received + rxbytes];
      const counts = { node_disconnected: broker.disconnects ?? 0, request_timed_out: broker.req_timeouts };
      for (const [report, count] of Object.entries(counts)) {
        if (count > (counted.get(report + name) ?? 0)) {
          say(report, { broker: nodeid, at_ns: now() });
        }
        counted.set(report + name, count);
      }
    }
  }
  say('traffic', { brokers });
}

// Return a client when it is connected, and each partition of the topics has a leader.
async function connected(client, start) {
  client.on('event.stats', onStatistics);
  client.on('event.error', complain);
  const metadataOf = promisify((topic, done) => client.getMetadata({ topic, timeout: 2_000 }, done));
  client.connect({ timeout: 2_000 }, () => {}); // fails while no broker answers, and goes on
  if (!client.isConnected()) {
    await once(client, 'ready');
  }
  for (const { name, partitions } of start.topics) {
    for (let led = 0; led < partitions; await sleep(50)) {
      try {
        const topic = (await metadataOf(name)).topics.find((known) => known.name === name);
        led = topic.partitions.filter(({ leader }) => leader >= 0).length;
      } catch (error) {
        complain(error);
      }
    }
  }
  if (start.settings[DESCRIBES]) {
    describeTopics(client, start);
  }
  return client;
}

// Describe the topics again and again, as an application's monitoring does.
function describeTopics(client, start) {
  const admin = Kafka.AdminClient.createFrom(client);
  const names = start.topics.map(({ name }) => name);
  const describe = promisify((done) => admin.describeTopics(names, { timeout: 2_000 }, done));
  setInterval(() => describe().catch(complain), Number(start.settings[DESCRIBES])).unref();
}

function contentOf(text) {
  return text === null ? null : Buffer.from(text, 'base64');
}

async function openProducer(start) {
  const { transaction } = start;
  const deadlineMs = Math.min(start.deadline_ms, transaction?.timeout_ms ?? start.deadline_ms);
  const own = {
    acks: start.acks,
    'enable.idempotence': start.idempotence,
    'linger.ms': start.linger_ms,
    'delivery.timeout.ms': deadlineMs,
    dr_cb: true,
    ...(transaction ? { 'transactional.id': transaction.id, 'transaction.timeout.ms': transaction.timeout_ms } : {}),
  };
  const producer = await connected(new Kafka.Producer(...configsOf(start, own)), start);
  producer.setPollInterval(10);
  producer.on('delivery-report', (error, { partition, offset, opaque: order }) => {
    if (error) {
      failed(order, nameOf(error)); // the error decides whether the record is in doubt
    } else {
      acked(order, start.acks === '0' ? { partition } : { partition, offset });
    }
  });
  while (transaction) {
    try {
      await promisify((done) => producer.initTransactions(start.deadline_ms, done))();
      break;
    } catch (error) {
      complain(error);
      await sleep(50);
    }
  }
  return producer;
}

function send(producer, start, order) {
  begin(order, start.deadline_ms + 2_000); // librdkafka keeps the deadline, and looks once a second
  order.handed = true;
  const key = order.key === '' ? '' : contentOf(order.key); // an empty buffer would be sent as null
  const headers = order.headers.map(([name, text]) => ({ [name]: contentOf(text) }));
  try {
    producer.produce(order.topic, null, contentOf(order.value), key, undefined, order, headers);
  } catch (error) {
    failed(order, nameOf(error), false);
  }
}

// Carry out an order about transactions, and report what librdkafka demands if it fails.
async function transact(producer, start, order) {
  const calls = {
    begin_transaction: (done) => producer.beginTransaction(done),
    commit_transaction: (done) => producer.commitTransaction(start.deadline_ms, done),
    abort_transaction: (done) => producer.abortTransaction(start.deadline_ms, done),
  };
  try {
    await promisify(calls[order.do])();
    say('transacted', { did: order.do });
  } catch (error) {
    const repeats = error.isRetriable && !error.isFatal;
    const then = error.isTxnRequiresAbort ? 'abort' : repeats ? 'repeat' : 'reopen';
    say('transacted', { did: order.do, error: nameOf(error), then, in_doubt: order.do !== 'begin_transaction' });
  }
}

async function produce(start) {
  let producer = await openProducer(start);
  say('ready', { accepts: ['topics', 'transactions'] });
  for await (const order of ordersUntilClose()) {
    if (order.do === 'send') {
      send(producer, start, order);
    } else if (order.do === 'reopen_producer') {
      await promisify((done) => producer.disconnect(1_000, done))().catch(complain);
      giveUp('_PURGE_INFLIGHT'); // the addon has no reports of these
      producer = await openProducer(start);
      say('transacted', { did: order.do });
    } else {
      await transact(producer, start, order);
    }
  }
  await awaitReports();
}

// Partitions of a consumer, and the offsets that it has processed and not committed.
class Assignment {
  constructor(start) {
    this.start = start;
    this.held = new Map(); // number of the assignment of each partition
    this.turns = 0;
    this.offsets = new Map(); // of each place
    this.records = 0;
    this.committedMs = performance.now();
    this.isReady = false;
  }

  static place({ topic, partition }) {
    return `${topic} ${partition}`;
  }

  ready() {
    if (!this.isReady) {
      this.isReady = true;
      say('ready', { accepts: ['isolation', 'topics'] });
    }
  }

  // Report partitions as `assigned`, `revoked` or `lost`, each topic of the order by itself.
  say(report, places) {
    for (const { name } of this.start.topics) {
      const partitions = places.filter(({ topic }) => topic === name).map(({ partition }) => partition);
      say(report, { topic: name, partitions, at_ns: now() });
    }
  }

  assigned(places) {
    this.turns += 1;
    places.forEach((place) => this.held.set(Assignment.place(place), this.turns));
    this.say('assigned', places);
    this.ready();
  }

  // Forget partitions, and return what is to be committed of them.
  givenUp(places) {
    const names = places.map(Assignment.place);
    const due = names.map((name) => this.offsets.get(name)).filter((offset) => offset && this.start.commit);
    names.forEach((name) => this.held.delete(name) && this.offsets.delete(name));
    return due;
  }

  async process(message) {
    const name = Assignment.place(message);
    const turn = this.held.get(name);
    if (this.start.processing_ms) {
      await sleep(this.start.processing_ms);
    }
    if (turn === undefined || this.held.get(name) !== turn) {
      return; // revoked while it waited for its turn, and perhaps assigned again
    }
    const marks = (message.headers ?? []).filter((header) => 'aftershock' in header).map((header) => header.aftershock);
    const mark = marks.at(-1) ?? null;
    const { topic, partition, offset } = message;
    const sizeBytes = message.value?.length ?? 0;
    const text = mark === null ? null : Buffer.from(mark).toString('base64');
    say('record', { topic, partition, offset, mark: text, size_bytes: sizeBytes, at_ns: now() });
    const position = { topic, partition, offset: offset + 1 };
    this.offsets.set(name, position);
    this.records += 1;
    if (storesOffsets(this.start)) {
      this.consumer.offsetsStore([position]);
    }
  }

  // Return and forget what is to be committed by the order's schedule.
  due() {
    const { every_ms: everyMs, every_records: everyRecords } = this.start.commit ?? {};
    const isLate = everyMs && performance.now() - this.committedMs >= everyMs;
    if (!this.offsets.size || !(isLate || (everyRecords && this.records >= everyRecords))) {
      return [];
    }
    const due = [...this.offsets.values()];
    this.offsets.clear();
    this.records = 0;
    this.committedMs = performance.now();
    return due;
  }
}

// Report offsets that Kafka has accepted, of a commit that was sent at `began`.
function sayCommitted(places, began) {
  const topics = {};
  for (const { topic, partition, offset } of places) {
    topics[topic] = { ...topics[topic], [partition]: offset };
  }
  for (const [topic, offsets] of Object.entries(topics)) {
    say('committed', { topic, offsets, took_us: Math.ceil(1_000 * (performance.now() - began)), at_ns: now() });
  }
}

function commitNow(consumer, places) {
  if (places.length) {
    const began = performance.now();
    try {
      consumer.commitSync(places);
      sayCommitted(places, began);
    } catch (error) {
      complain(error);
    }
  }
}

// Whether librdkafka commits by itself: then only what was reported, because records that wait for their turn when
// their partition is revoked are not.
function storesOffsets(start) {
  return start.group !== null && start.commit === null;
}

function consumerConfigs(start, assignment) {
  const own = {
    'group.id': start.group ?? start.client_id, // librdkafka requires one
    'enable.auto.commit': storesOffsets(start),
    'enable.auto.offset.store': false,
    'auto.offset.reset': start.from,
    offset_commit_cb: true,
    rebalance_cb(error, places) {
      const isCooperative = this.rebalanceProtocol() === 'COOPERATIVE';
      if (error.code === ERR__ASSIGN_PARTITIONS) {
        assignment.assigned(places);
        isCooperative ? this.incrementalAssign(places) : this.assign(places);
      } else if (error.code === ERR__REVOKE_PARTITIONS) {
        const due = assignment.givenUp(places);
        const isLost = this.assignmentLost();
        if (!isLost) {
          commitNow(this, due);
        }
        assignment.say(isLost ? 'lost' : 'revoked', places);
        isCooperative ? this.incrementalUnassign(places) : this.unassign();
      } else {
        complain(error);
      }
    },
  };
  const optional = {
    'group.protocol': start.group_protocol,
    'group.instance.id': start.instance_id,
    'isolation.level': start.isolation,
    [start.group_protocol === 'consumer' ? 'group.remote.assignor' : 'partition.assignment.strategy']: start.assignor,
  };
  const given = Object.entries(optional).filter(([, value]) => value !== null && value !== undefined);
  return configsOf(start, { ...own, ...Object.fromEntries(given) });
}

async function consume(start) {
  const assignment = new Assignment(start);
  const consumer = await connected(new Kafka.KafkaConsumer(...consumerConfigs(start, assignment)), start);
  assignment.consumer = consumer;
  consumer.setDefaultConsumeTimeout(100);
  let sent = null; // the commit without a result: its offsets and time
  consumer.on('offset.commit', (error, places) => {
    if (error) {
      complain(error);
    } else if (sent && start.commit) {
      sayCommitted(places ?? sent.places, sent.began);
    }
    sent = null;
  });
  if (start.group === null) {
    const places = start.topics.flatMap(({ name, positions }) =>
      Object.entries(positions).map(([number, offset]) => ({ topic: name, partition: Number(number), offset })),
    );
    consumer.assign(places);
    assignment.assigned(places);
  } else {
    // a name that begins with ^ is a pattern, which need not match the whole name of a topic
    consumer.subscribe(start.pattern ? [`^(${start.pattern})$`] : start.topics.map(({ name }) => name));
    if (start.members > 1) {
      assignment.ready(); // a member of several may get no partitions
    }
  }
  let isClosing = false;
  const closed = (async () => {
    while ((await nextOrder()).do !== 'close');
    isClosing = true;
  })();
  // one by one: a record that waits here while its partition is revoked and assigned again would come a second time
  const next = promisify((done) => consumer.consume(1, done));
  while (!isClosing) {
    try {
      for (const message of await next()) {
        await assignment.process(message);
      }
    } catch (error) {
      complain(error);
    }
    const due = sent ? [] : assignment.due();
    if (due.length) {
      sent = { places: due, began: performance.now() };
      consumer.commit(due);
    }
  }
  await closed;
  commitNow(consumer, start.commit ? [...assignment.offsets.values()] : []); // rebalance_cb comes too late for it
  assignment.offsets.clear();
  await Promise.race([promisify((done) => consumer.disconnect(done))(), sleep(4_000)]); // revokes, and leaves the group
}

// Commit the orders of a group one by one with a consumer of its own, which reads nothing.
class Committer {
  constructor(start, group) {
    this.start = start;
    const own = { 'group.id': group, 'enable.auto.commit': false, offset_commit_cb: true };
    this.consumer = new Kafka.KafkaConsumer(...configsOf(start, own));
    this.turn = Promise.resolve();
  }

  add(order) {
    this.turn = this.turn.then(() => this.commit(order)).catch(die);
  }

  async commit(order) {
    const place = { topic: this.start.topic, partition: order.partition, offset: order.offset };
    while (isPending(order)) {
      order.handed = true;
      const result = once(this.consumer, 'offset.commit');
      this.consumer.commit(place);
      const [error] = await result;
      if (!error) {
        acked(order);
      } else {
        await sleep(100); // librdkafka gives a commit up while it knows no coordinator
      }
    }
  }
}

async function commit(start) {
  const committers = new Map(start.groups.map((group) => [group, new Committer(start, group)]));
  await Promise.all([...committers.values()].map(({ consumer }) => connected(consumer, start)));
  for (const { consumer } of committers.values()) {
    consumer.setDefaultConsumeTimeout(1_000);
    const serve = () => consumer.consume(1, serve); // results of commits arrive while it polls
    serve();
  }
  say('ready');
  for await (const order of ordersUntilClose()) {
    begin(order, start.deadline_ms);
    committers.get(order.group).add(order);
  }
  await awaitReports();
}

// Tell the version of the library, what its librdkafka lacks, and why it refuses the settings of an arm.
function describe(settings) {
  const tried = (own) => {
    try {
      new Kafka.KafkaConsumer({ 'group.id': 'describe', ...librdkafkas(settings), ...own }, {});
      return null;
    } catch (error) {
      return error.message;
    }
  };
  const lacks = {};
  if (tried({ 'group.protocol': 'consumer' })) {
    lacks.protocol = "this version's librdkafka has no consumer protocol (KIP-848)";
  }
  console.log(JSON.stringify({ version, lacks, refused: tried({}) }));
}

async function main() {
  if (process.argv[2] === '--describe') {
    describe(JSON.parse(process.argv[3]));
    return;
  }
  read();
  const start = await nextOrder();
  await { produce, consume, commit }[start.op](start);
  say('bye');
  process.exit(0);
}

process.on('uncaughtException', die);
main().catch(die);
