'use strict';

const { randomUUID } = require('node:crypto');
const { setTimeout: sleep } = require('node:timers/promises');
const { awaitLeaders, open } = require('./connection');
const { aloneIn, keepRunning, openConsumer } = require('./group');
const { nextOrder, now, persist, say, within } = require('./protocol');

// Refuse what KafkaJS's members of groups can't do.
function requireSupported(start) {
  if (start.group_protocol === 'consumer') {
    throw new Error('KafkaJS has no consumer protocol (KIP-848); use `protocol: classic`');
  }
  if (start.assignor && start.assignor !== 'roundrobin') {
    throw new Error(`KafkaJS has no assignor ${start.assignor}; use roundrobin`);
  }
  if (start.instance_id) {
    throw new Error('KafkaJS has no static members (KIP-345); leave out `static`');
  }
}

// Partitions and positions of a consumer, with its reports. A consumer without a group (`isMember` is false) keeps its
// positions when KafkaJS joins again, and reports its first assignment only.
class Assignment {
  constructor(start) {
    this.isMember = start.group !== null;
    this.topics = start.topics;
    this.partitions = new Map(); // topic → numbers; another object after each assignment
    this.positions = new Map(); // topic → partition → next offset
    for (const { name, positions } of start.topics) {
      this.positions.set(name, new Map(Object.entries(positions ?? {}).map(([number, at]) => [Number(number), at])));
    }
    this.isReady = false;
  }

  ready() {
    if (!this.isReady) {
      this.isReady = true;
      say('ready', { accepts: ['topics', 'isolation'] });
    }
  }

  joined({ memberId, memberAssignment }) {
    this.partitions = new Map(Object.entries(memberAssignment));
    const partitionsOf = (topic) => this.partitions.get(topic) ?? [];
    const isWhole = this.topics.every(({ name, partitions }) => partitionsOf(name).length >= partitions);
    if (this.isMember || (isWhole && !this.isReady)) {
      const member = this.isMember ? memberId : undefined;
      for (const topic of new Set([...this.topics.map(({ name }) => name), ...this.partitions.keys()])) {
        say('assigned', { topic, partitions: partitionsOf(topic), member, at_ns: now() });
      }
      this.ready();
    }
  }

  // Report that the member has no partition any longer; `report` is `revoked` or `lost`.
  giveUp(report) {
    if (this.isMember) {
      for (const [topic, partitions] of this.partitions) {
        if (partitions.length) {
          say(report, { topic, partitions, at_ns: now() });
        }
      }
      this.positions.clear();
    }
    this.partitions = new Map();
  }

  received({ topic, partition, highWatermark }, message) {
    const mark = [message.headers?.aftershock ?? null].flat().at(-1);
    say('record', {
      topic,
      partition,
      offset: Number(message.offset),
      mark: mark === null ? null : mark.toString('base64'),
      size_bytes: message.value?.length ?? 0,
      high_watermark: Number(highWatermark),
      at_ns: now(),
    });
    const positions = this.positions.get(topic) ?? new Map();
    this.positions.set(topic, positions.set(partition, Number(message.offset) + 1));
  }

  // Return the positions in the form that KafkaJS takes.
  offsets() {
    return [...this.positions].flatMap(([topic, positions]) =>
      [...positions].map(([partition, offset]) => ({ topic, partition, offset: String(offset) })),
    );
  }
}

// Report each commit that Kafka has accepted.
function reportCommits(consumer) {
  let tookMs = 0;
  consumer.on(consumer.events.REQUEST, ({ payload: { apiName, pendingDuration, duration } }) => {
    if (apiName === 'OffsetCommit') {
      // both are differences of whole milliseconds, so each may be one too long; a commit right after a delivery must not
      // seem to be sent before it
      tookMs = Math.max(0, pendingDuration + duration - 2);
    }
  });
  consumer.on(consumer.events.COMMIT_OFFSETS, ({ payload: { topics, groupGenerationId } }) => {
    for (const { topic, partitions } of topics) {
      const offsets = Object.fromEntries(partitions.map(({ partition, offset }) => [partition, Number(offset)]));
      say('committed', { topic, offsets, took_us: tookMs * 1_000, epoch: groupGenerationId, at_ns: now() });
    }
  });
}

async function consume(start, options) {
  requireSupported(start);
  if (start.isolation) {
    options.consumer.readUncommitted = start.isolation === 'read_uncommitted';
  }
  const kafka = open(start, options);
  await awaitLeaders(kafka, start.topics);
  const assignment = new Assignment(start);
  const { isMember } = assignment;
  let isClosing = false;

  const group = isMember ? { groupId: start.group } : aloneIn(`${start.client_id}-${randomUUID()}`);
  // without REBALANCING before, the coordinator does not know the member any longer, or KafkaJS joins of its own accord
  const joins = () => assignment.giveUp('lost');
  const consumer = openConsumer(kafka, options, { ...group, rackId: start.client_rack ?? '' }, joins);
  const { events } = consumer;
  consumer.on(events.REBALANCING, () => assignment.giveUp('revoked')); // after the last commit, before the next join
  consumer.on(events.CRASH, () => assignment.giveUp('lost'));
  consumer.on(events.GROUP_JOIN, ({ payload }) => {
    assignment.joined(payload);
    if (!isMember) {
      assignment.offsets().forEach((place) => consumer.seek(place));
    }
  });
  reportCommits(consumer);

  async function eachBatch({ batch, resolveOffset, heartbeat, commitOffsetsIfNecessary, isRunning, isStale }) {
    const { partitions } = assignment;
    for (const message of batch.messages) {
      if (start.processing_ms) {
        await sleep(start.processing_ms);
      }
      // KafkaJS may join again, or seek, while a batch waits for its turn or is processed
      const isHeld = assignment.partitions === partitions && partitions.get(batch.topic)?.includes(batch.partition);
      if (isClosing || !isHeld || !isRunning() || isStale()) {
        return;
      }
      assignment.received(batch, message);
      resolveOffset(message.offset);
      await heartbeat();
      await commitOffsetsIfNecessary();
    }
  }

  await persist(() => consumer.connect());
  const topics = start.pattern ? [new RegExp(`^(?:${start.pattern})$`)] : start.topics.map(({ name }) => name);
  await persist(() => consumer.subscribe({ topics, fromBeginning: start.from === 'earliest' }));
  // KafkaJS also commits after each batch, and before it joins again because the group rebalances
  const commits = { autoCommitInterval: start.commit?.every_ms, autoCommitThreshold: start.commit?.every_records };
  const config = { autoCommit: isMember, ...commits, eachBatch };
  keepRunning(consumer, config, options.program, () => isClosing);
  if (start.members > 1) {
    assignment.ready();
  }

  while ((await nextOrder()).do !== 'close');
  isClosing = true;
  if (isMember) {
    await within(1_000, async () => consumer.commitOffsets(assignment.offsets()));
    assignment.giveUp('revoked');
  }
  await within(3_000, () => consumer.stop()); // leaves the group
}

module.exports = { consume };
