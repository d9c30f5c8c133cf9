// pg-boss. Plain rows use work(), which is woken by LISTEN/NOTIFY and keeps fetching while batches
// are full; the fetch() rows call fetch() and complete() in a loop, which avoids work()'s polling
// interval (at least 0.5 s) after a partial batch. Rows with a key per resource use the queue
// policies `singleton` (one active job per key) and `key_strict_fifo` (one, in order), both with
// one fetcher: several batch fetchers conflict on the unique index of the key, or deadlock.
import { KEYS, key, load, main, sleep } from './common.mjs'

const { PgBoss } = load('pg-boss')

const loops = { producers: 4, batch: 64, workers: 4, fetch: 64, inFlight: 256 }
const many = { producers: 4, batch: 500, workers: 4, fetch: 500, inFlight: 5000 }
const keyed = { workers: 1 }
const rows = [
  { what: 'insert x64, work() x64, 256 in flight', ...loops, work: true },
  { what: 'insert x500, work() x500, 5000 in flight', ...many, work: true },
  { what: 'insert x500, fetch() x500, 5000 in flight', ...many },
  { what: 'send one by one, fetch() x64, 256 in flight', ...loops, producers: 64, batch: 1 },
  { what: 'send, fetch and complete one by one, 256 in flight', ...loops, producers: 32, batch: 1, workers: 32, fetch: 1 },
  { what: `insert x64, fetch() x64, singleton by ${KEYS} keys, 256 in flight`, ...loops, ...keyed, policy: 'singleton' },
  { what: `insert x64, fetch() x64, strict fifo by ${KEYS} keys, 256 in flight`, ...loops, ...keyed, policy: 'key_strict_fifo' },
  { what: `insert x500, fetch() x500, strict fifo by ${KEYS} keys, 5000 in flight`, ...many, ...keyed, policy: 'key_strict_fifo' },
  { what: `send one by one, fetch() x64, strict fifo by ${KEYS} keys, 256 in flight`, ...loops, producers: 64, batch: 1, ...keyed, policy: 'key_strict_fifo' },
]

async function startBoss(url, max, consumes) {
  const boss = new PgBoss({
    connectionString: url, max, schedule: false, supervise: consumes, migrate: consumes, useListenNotify: consumes,
  })
  boss.on('error', (error) => console.error(`# ${error.message}`))
  await boss.start()
  return boss
}

async function open(row, url) {
  const boss = await startBoss(url, Math.min(row.producers, 64), false)
  const options = () => (row.policy ? { singletonKey: key() } : {})
  return {
    insert: (count) =>
      count === 1
        ? boss.send('noop', {}, options())
        : boss.insert('noop', Array.from({ length: count }, () => ({ data: {}, ...options() }))),
    close: () => boss.stop({ graceful: true, timeout: 5000 }),
  }
}

async function consume(row, url, ran) {
  const boss = await startBoss(url, row.workers + 4, true)
  if (await boss.getQueue('noop')) await boss.deleteQueue('noop')
  await boss.createQueue('noop', { policy: row.policy ?? 'standard', notify: !!row.work })
  let stopped = false
  let refused = 0
  const loop = async () => {
    while (!stopped) {
      let jobs = []
      try {
        jobs = await boss.fetch('noop', { batchSize: row.fetch })
      } catch (error) {
        // Two fetches took jobs of the same key concurrently.
        if (error.code !== '23505' && error.code !== '40P01') throw error
        refused += 1
      }
      if (jobs.length === 0) {
        await sleep(2)
        continue
      }
      await boss.complete('noop', jobs.map(({ id }) => id))
      ran(jobs.length)
    }
  }
  let running = []
  if (row.work) {
    const options = {
      batchSize: row.fetch, localConcurrency: row.workers, burstWhenBatchFull: true,
      pollingIntervalSeconds: 0.5, notifyPollingIntervalSeconds: 0.5,
    }
    await boss.work('noop', options, async (jobs) => ran(jobs.length))
  } else {
    running = Array.from({ length: row.workers }, loop)
  }
  return {
    drained: async (inserted) => {
      const { rows } = await boss.getDb().executeSql(
        "select count(*)::int as n from pgboss.job where name = 'noop' and state = 'completed'", [])
      return rows[0].n === inserted
    },
    close: async () => {
      stopped = true
      await Promise.all(running)
      if (refused) console.error(`# ${refused} fetches refused`)
      await boss.stop({ graceful: true, timeout: 5000 })
    },
  }
}

await main(import.meta.url, 'pg-boss', rows, open, consume)
