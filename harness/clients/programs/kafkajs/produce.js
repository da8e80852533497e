'use strict';

const { setImmediate: nextTurn, setTimeout: sleep } = require('node:timers/promises');
const { Partitioners } = require('kafkajs');
const { awaitLeaders, open } = require('./connection');
const {
  acked,
  awaitReports,
  begin,
  complain,
  die,
  failed,
  isPending,
  nameOf,
  ordersUntilClose,
  persist,
  say,
} = require('./protocol');

const ACKS = { all: -1, 1: 1, 0: 0 };
const BATCH_BYTES_MAX = 256 * 2 ** 10;
const BATCH_RECORDS_MAX = 500; // KafkaJS copies the list of a batch's records for each of them
const BUFFER_BYTES_MAX = 32 * 2 ** 20;

// Records of one partition, of which KafkaJS has one batch at a time.
//
// KafkaJS takes back the sequence numbers of a batch that failed, and sends the batch again later. A second batch of
// the partition would meanwhile get the same numbers, and Kafka would acknowledge it as a repetition of the first.
class PartitionQueue {
  static bufferedBytes = 0; // of all queues, and of the records that KafkaJS has

  constructor(send, lingerMs, batchBytes) {
    this.send = send;
    this.lingerMs = lingerMs;
    this.batchBytes = batchBytes;
    this.records = [];
    this.isDraining = false;
  }

  add(record) {
    PartitionQueue.bufferedBytes += record.sizeBytes;
    this.records.push(record);
    if (!this.isDraining) {
      this.drain().catch(die);
    }
  }

  // Remove a record whose deadline has passed, unless KafkaJS has it: the oldest, because all have the same time limit.
  expire(record) {
    if (this.records[0] === record) {
      this.records.shift();
      PartitionQueue.bufferedBytes -= record.sizeBytes;
    }
  }

  async drain() {
    this.isDraining = true;
    while (this.records.length) {
      const lingerMs = Math.ceil(this.records[0].addedMs + this.lingerMs - performance.now());
      await (lingerMs > 0 ? sleep(lingerMs) : nextTurn()); // orders that were read together make one batch
      const batch = this.take();
      if (batch.length) {
        await this.send(batch);
        PartitionQueue.bufferedBytes -= batch.reduce((total, { sizeBytes }) => total + sizeBytes, 0);
      }
    }
    this.isDraining = false;
  }

  // Remove and return the records of the next batch, which has at most `batchBytes`, or a single record.
  take() {
    let bytes = 0;
    const end = this.records.findIndex(({ sizeBytes }, count) => {
      bytes += sizeBytes;
      return count === BATCH_RECORDS_MAX || (count && bytes > this.batchBytes);
    });
    return this.records.splice(0, end < 0 ? this.records.length : end);
  }
}

function contentOf(text) {
  return text === null ? null : Buffer.from(text, 'base64');
}

// Return headers as the object that KafkaJS takes, or null if it can't send them unchanged.
function headersOf(order) {
  const headers = Object.create(null);
  for (const [name, text] of order.headers) {
    headers[name] = [...(headers[name] ?? []), contentOf(text)];
  }
  const sent = Object.entries(headers).flatMap(([name, values]) => values.map(() => name));
  const isKept = order.headers.every(([name, text], at) => text !== null && name === sent[at]);
  return isKept ? headers : null;
}

function recordOf(order) {
  const key = contentOf(order.key);
  const value = contentOf(order.value);
  const sizeBytes = value.length + (key?.length ?? 0);
  return { seq: order.seq, key, value, headers: headersOf(order), sizeBytes, addedMs: performance.now() };
}

async function openProducer(kafka, start, options) {
  const producer = kafka.producer({
    createPartitioner: Partitioners.DefaultPartitioner,
    allowAutoTopicCreation: false,
    ...options.producer,
    ...(start.idempotence ? { idempotent: true, maxInFlightRequests: 1 } : {}),
  });
  await persist(() => producer.connect());
  for (const { name } of start.topics) {
    await persist(() => producer.send({ topic: name, messages: [] })); // sends nothing, and gets the metadata
  }
  return producer;
}

async function produce(start, options) {
  const kafka = open(start, options);
  await awaitLeaders(kafka, start.topics);
  let opening = openProducer(kafka, start, options);
  await opening;
  const request = { acks: ACKS[start.acks], timeout: Math.min(30_000, start.deadline_ms), ...options.request };

  async function send(topic, partition, batch) {
    const opened = opening;
    const producer = await opened;
    const records = batch.filter(isPending);
    const messages = records.map(({ key, value, headers }) => ({ partition, key, value, headers }));
    for (const record of records) {
      record.handed = true;
    }
    try {
      const [place] = await producer.send({ ...request, topic, messages });
      for (const [index, record] of records.entries()) {
        if (start.acks === '0') {
          acked(record, { partition });
        } else if (place) {
          acked(record, { partition, offset: place.baseOffset < 0 ? undefined : Number(place.baseOffset) + index });
        } else {
          failed(record, '_UNKNOWN_PARTITION', true); // KafkaJS leaves out a partition that its metadata lacks
        }
      }
    } catch (error) {
      complain(error);
      for (const record of records) {
        failed(record, nameOf(error));
      }
      // The next batch would have the sequence numbers of this one, which Kafka may have, and KafkaJS never asks for a
      // new producer id. The old producer may still have batches of other partitions.
      if (start.idempotence && opening === opened && nameOf(error) !== 'MESSAGE_TOO_LARGE') {
        opening = openProducer(kafka, start, options);
      }
    }
  }

  const { batchBytes = BATCH_BYTES_MAX, bufferBytes = BUFFER_BYTES_MAX } = options.queue;
  const topics = new Map();
  for (const { name, partitions } of start.topics) {
    const partitionMetadata = [...Array(partitions).keys()].map((partitionId) => ({ partitionId, leader: 0 }));
    const queues = partitionMetadata.map(({ partitionId }) => {
      return new PartitionQueue((records) => send(name, partitionId, records), start.linger_ms, batchBytes);
    });
    topics.set(name, { partitionMetadata, queues });
  }
  const partitioner = Partitioners.DefaultPartitioner();
  say('ready', { accepts: ['topics'] });
  for await (const order of ordersUntilClose()) {
    const { topic } = order;
    const { partitionMetadata, queues } = topics.get(topic);
    const record = recordOf(order);
    const queue = queues[partitioner({ topic, partitionMetadata, message: { key: record.key } })];
    begin(record, start.deadline_ms, () => queue.expire(record));
    if (record.headers === null) {
      failed(record, '_INVALID_ARG', false);
    } else if (PartitionQueue.bufferedBytes && PartitionQueue.bufferedBytes + record.sizeBytes > bufferBytes) {
      failed(record, '_QUEUE_FULL', false);
    } else {
      queue.add(record);
    }
  }
  await awaitReports();
}

module.exports = { produce };
