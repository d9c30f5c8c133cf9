// Shared code of the Node peers: package loading, and a closed loop that keeps a bounded number of
// jobs in flight. The producer runs in its own thread, as it would in its own process in an
// application.
import { createRequire } from 'node:module'
import { Worker, isMainThread, parentPort, workerData } from 'node:worker_threads'

export const load = createRequire(new URL('./.work/node/package.json', import.meta.url))
export const KEYS = 1000

const DONE = 0 // jobs whose handler ran
const INSERTED = 1 // jobs the database acknowledged
const STOP = 2

export const sleep = (ms) => new Promise((resolve) => setTimeout(resolve, ms))

export function key() {
  return 'r' + Math.floor(Math.random() * KEYS)
}

function until(promise, seconds, what) {
  let timer
  const late = new Promise((_, reject) => {
    timer = setTimeout(() => reject(new Error(`${what} took over ${seconds} s`)), seconds * 1000)
  })
  return Promise.race([promise, late]).finally(() => clearTimeout(timer))
}

// The producer thread: `open(row, url)` returns {insert(count), close()}.
async function produce(open) {
  const { url, row, shared } = workerData
  const counts = new Int32Array(shared)
  const { insert, close } = await open(row, url)
  let reserved = 0
  let waiting = null
  const wait = (seen) => {
    if (!waiting) {
      const { async, value } = Atomics.waitAsync(counts, DONE, seen, 20)
      waiting = Promise.resolve(async ? value : undefined).then(() => { waiting = null })
    }
    return waiting
  }
  const loop = async () => {
    while (!Atomics.load(counts, STOP)) {
      const done = Atomics.load(counts, DONE)
      if (reserved + row.batch - done > row.inFlight) {
        await wait(done)
        continue
      }
      reserved += row.batch
      await insert(row.batch)
      Atomics.add(counts, INSERTED, row.batch)
    }
  }
  parentPort.postMessage('ready')
  await Promise.all(Array.from({ length: row.producers }, loop))
  await close()
}

// Measures one row: `consume(row, url, ran)` starts the peer's worker, which calls `ran(count)`
// from its handler, and returns {drained(inserted), close()}; drained() returns whether the database
// shows every inserted job as completed.
async function measure(file, peer, row, url, seconds, consume) {
  const shared = new SharedArrayBuffer(12)
  const counts = new Int32Array(shared)
  const ran = (count) => {
    Atomics.add(counts, DONE, count)
    Atomics.notify(counts, DONE)
  }
  const consumer = await consume(row, url, ran)
  const producer = new Worker(file, { workerData: { url, row, shared } })
  const ended = new Promise((resolve, reject) => {
    producer.once('exit', resolve)
    producer.once('error', reject)
  })
  ended.catch(() => {})
  await until(Promise.race([new Promise((resolve) => producer.once('message', resolve)), ended]), 30, 'start')
  await Promise.race([sleep(1000), ended]) // warm up connections, plans and caches
  const from = performance.now()
  const before = Atomics.load(counts, DONE)
  await Promise.race([sleep(seconds * 1000), ended])
  const rate = ((Atomics.load(counts, DONE) - before) * 1000) / (performance.now() - from)
  Atomics.store(counts, STOP, 1)
  await until(ended, 30, 'the last insert')
  const drain = performance.now()
  const inserted = Atomics.load(counts, INSERTED)
  await until((async () => { while (!(await consumer.drained(inserted))) await sleep(50) })(), 60, 'the drain')
  const tail = ((performance.now() - drain) / 1000).toFixed(1)
  console.log(`${peer}\t${row.what}\t${Math.round(rate)}`)
  console.error(`# ${inserted} jobs in all, every one completed, ${tail} s after the last insert`)
  await until(consumer.close(), 30, 'the end')
}

// Usage of each script: URL SECONDS [ONLY], where ONLY is part of a row's name.
export async function main(file, peer, rows, open, consume) {
  if (!isMainThread) return produce(open)
  const [url, seconds, only = ''] = process.argv.slice(2)
  if (!url || !(Number(seconds) > 0)) {
    console.error(`usage: ${peer} URL SECONDS [ONLY]`)
    process.exit(2)
  }
  let failed = 0
  for (const row of rows.filter(({ what }) => what.includes(only))) {
    try {
      await measure(new URL(file), peer, row, url, Number(seconds), consume)
    } catch (error) {
      failed = 1
      console.log(`${peer}\t${row.what}\tfailed`)
      console.error(`# ${error.message}`)
      break // remaining connections and jobs would disturb the next row
    }
  }
  process.exit(failed)
}
