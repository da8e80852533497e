'use strict';

// Protocol of docs/EXEC.md: orders on standard input, reports on standard output.

const { writeSync } = require('node:fs');
const { createInterface } = require('node:readline');
const { setTimeout: sleep } = require('node:timers/promises');

// Kafka's names of errors that have an older name in KafkaJS
const KAFKA_NAMES = {
  UNKNOWN: 'UNKNOWN_SERVER_ERROR',
  NOT_LEADER_FOR_PARTITION: 'NOT_LEADER_OR_FOLLOWER',
  GROUP_LOAD_IN_PROGRESS: 'COORDINATOR_LOAD_IN_PROGRESS',
  GROUP_COORDINATOR_NOT_AVAILABLE: 'COORDINATOR_NOT_AVAILABLE',
  NOT_COORDINATOR_FOR_GROUP: 'NOT_COORDINATOR',
};
// librdkafka's names of KafkaJS's own errors
const OWN_NAMES = {
  KafkaJSConnectionError: '_TRANSPORT',
  KafkaJSConnectionClosedError: '_TRANSPORT',
  KafkaJSBrokerNotFound: '_TRANSPORT',
  KafkaJSNoBrokerAvailableError: '_TRANSPORT',
  KafkaJSRequestTimeoutError: '_TIMED_OUT',
  KafkaJSLockTimeout: '_TIMED_OUT',
  KafkaJSGroupCoordinatorNotFound: 'COORDINATOR_NOT_AVAILABLE',
};

// Write a report. A full pipe blocks the process, as the protocol requires; process.stdout would keep it in memory.
function say(report, details = {}) {
  const line = Buffer.from(JSON.stringify({ say: report, ...details }) + '\n');
  for (let written = 0; written < line.length; ) {
    written += writeSync(1, line, written);
  }
}

// Return the time for `at_ns` of a report.
function now() {
  return Number(process.hrtime.bigint()); // of CLOCK_MONOTONIC
}

const orders = [];
let wake = () => {};

// Read orders until the end of standard input, which ends the process at once.
function read() {
  const input = createInterface({ input: process.stdin, crlfDelay: Infinity });
  input.on('line', (line) => {
    orders.push(JSON.parse(line));
    wake();
  });
  input.on('close', () => process.exit(1));
}

async function nextOrder() {
  while (!orders.length) {
    await new Promise((resolve) => {
      wake = resolve;
    });
  }
  return orders.shift();
}

// Yield orders until `close`.
async function* ordersUntilClose() {
  for (let order = await nextOrder(); order.do !== 'close'; order = await nextOrder()) {
    yield order;
  }
}

// Return Kafka's name of an error, or librdkafka's name where Kafka has none.
function nameOf(error) {
  let name = error.name;
  for (let cause = error; cause; cause = cause.cause) {
    if (cause.type) {
      return KAFKA_NAMES[cause.type] ?? cause.type; // of KafkaJSProtocolError, which other errors may wrap
    }
    name = OWN_NAMES[cause.name] ?? name;
  }
  return name;
}

// Report an error that ends nothing.
function complain(error) {
  say('error', { error: nameOf(error), detail: error.message });
}

// Report an error after which the program can't continue.
function die(error) {
  console.error(error);
  say('died', { why: String(error?.message ?? error) });
  process.exit(1);
}

// Repeat an action until it succeeds.
async function persist(action) {
  for (;;) {
    try {
      return await action();
    } catch (error) {
      complain(error);
      await sleep(100);
    }
  }
}

// Wait for an action that may fail or never end, before the process ends.
async function within(limitMs, action) {
  await Promise.race([action().catch(complain), sleep(limitMs)]);
}

const pending = new Map(); // records and commits without a report, by seq

// Start the deadline of a record or commit, after which it is reported as failed. It is in doubt if KafkaJS has it
// (`handed`), and otherwise not, because `expire` then keeps it from KafkaJS.
function begin(entry, deadlineMs, expire = () => {}) {
  entry.handed = false;
  entry.timer = setTimeout(() => {
    failed(entry, '_MSG_TIMED_OUT', entry.handed);
    expire();
  }, deadlineMs);
  pending.set(entry.seq, entry);
}

// Return true until the record or commit is reported.
function isPending(entry) {
  return pending.has(entry.seq);
}

// Report a record or commit as acknowledged, unless it was reported.
function acked(entry, place) {
  once(entry, 'acked', place);
}

// Report a record or commit as failed, unless it was reported; the error decides whether it is in doubt by default.
function failed(entry, error, inDoubt) {
  once(entry, 'failed', { error, in_doubt: inDoubt });
}

// Report all that is pending as failed.
function giveUp(error) {
  pending.forEach((entry) => failed(entry, error));
}

function once(entry, report, details) {
  if (pending.delete(entry.seq)) {
    clearTimeout(entry.timer);
    say(report, { seq: entry.seq, ...details });
  }
}

// Return when every record or commit is reported.
async function awaitReports() {
  while (pending.size) {
    await sleep(10);
  }
}

module.exports = {
  acked,
  awaitReports,
  begin,
  complain,
  die,
  failed,
  giveUp,
  isPending,
  nameOf,
  nextOrder,
  now,
  ordersUntilClose,
  persist,
  read,
  say,
  within,
};
