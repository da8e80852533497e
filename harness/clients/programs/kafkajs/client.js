'use strict';

// Client of docs/EXEC.md built on KafkaJS, which lacks four things that the protocol needs:
//
// - a consumer without a group: consume.js joins a group of its own, and seeks after every assignment;
// - commits for a group without joining it: commit.js has one member for each group, which reads nothing;
// - a linger and a deadline of a record: produce.js has a queue for each partition, and a timer for each record;
// - the bytes of each broker: connection.js counts them in the sockets.

const { optionsOf } = require('./connection');
const { die, nextOrder, read, say } = require('./protocol');
const { commit } = require('./commit');
const { consume } = require('./consume');
const { produce } = require('./produce');

const LACKS = {
  transactions: 'the program around KafkaJS does not produce in transactions',
  protocol: 'KafkaJS has no consumer protocol (KIP-848)',
  static: 'KafkaJS has no static members (KIP-345)',
  assignor: 'the program around KafkaJS uses its own round robin',
};

// Tell the version of the library, what it lacks, and why it refuses the settings of an arm.
function describe(settings) {
  let refused = null;
  try {
    optionsOf(settings);
  } catch (error) {
    refused = error.message;
  }
  console.log(JSON.stringify({ version: require('kafkajs/package.json').version, lacks: LACKS, refused }));
}

async function main() {
  if (process.argv[2] === '--describe') {
    describe(JSON.parse(process.argv[3]));
    return;
  }
  read();
  const start = await nextOrder();
  const operation = new Map(Object.entries({ produce, consume, commit })).get(start.op);
  if (!operation) {
    throw new Error(`unknown op ${start.op}`);
  }
  await operation(start, optionsOf(start.settings));
  say('bye');
  process.exit(0);
}

process.on('uncaughtException', die); // and promises of KafkaJS that fail and that nothing waits for
main().catch(die);
