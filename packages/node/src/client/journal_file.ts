// A file that several processes append to, and that is compacted while they do. No locks, which a killed
// process would leave behind:
//
// - An append is one `write` with `O_APPEND`, which a local file system performs as a whole and in an order.
//   The writer then reads the file up to its own record, so that all processes see the records in one order.
// - A compaction appends a seal, and writes what came before it into the next generation, `FILE.semel-1`,
//   `FILE.semel-2`, …, which appears under its name at once and complete (`link`). Its header has the journal's id
//   and its number, so that a copy under such a name is not taken for the newest generation. A record after the seal does not count: its
//   writer finds the seal, and appends again to the next generation. If the process that sealed the file dies,
//   the next one to find the seal writes that generation.

import { randomUUID } from "node:crypto";
import { constants } from "node:fs";
import { link, open, readdir, rm, type FileHandle } from "node:fs/promises";
import { basename, dirname, join } from "node:path";

import { JournalError } from "./errors.js";
import { decode, encode, type JournalRecord } from "./records.js";

const CHUNK_BYTES = 1024 * 1024;
/** How the header of every version begins. */
const HEADER_BEGIN = '{"t":"journal","version":1';

/** Where a record is in the file. */
export interface RecordPosition {
  readonly offset: number;
  readonly length: number;
}

/** What the records mean. */
export interface Reader {
  /** A new generation is read from its beginning. */
  reset(): void;
  apply(record: JournalRecord, position: RecordPosition): void;
  /** What the next generation holds. */
  compacted(read: (position: RecordPosition) => Promise<JournalRecord>): AsyncIterable<JournalRecord>;
}

interface Waiting {
  readonly bytes: Buffer;
  readonly mark: string;
  readonly done: () => void;
  readonly failed: (error: unknown) => void;
}

interface Generation {
  readonly number: number;
  readonly handle: FileHandle;
  /** Up to where complete lines were read. */
  offset: number;
  isSealed: boolean;
  /** The journal's id, once the header is read. */
  id: string | undefined;
}

export class JournalFile {
  #generation: Generation | undefined;
  /** The journal's id, once a header was read. */
  #id: string | undefined;
  #waiting: Waiting[] = [];
  #turn: Promise<unknown> = Promise.resolve();

  constructor(
    readonly path: string,
    readonly reader: Reader,
  ) {}

  /** The bytes that were read so far. */
  get size(): number {
    return this.#generation?.offset ?? 0;
  }

  /** Reads what other processes appended, then calls `then` before anything else is read. */
  async read<T>(then: (read: (position: RecordPosition) => Promise<JournalRecord>) => T | Promise<T>): Promise<T> {
    return this.#exclusively(async () => {
      const generation = await this.#current();
      return then((position) => readRecord(generation.handle, position));
    });
  }

  /**
   * Appends a record, and returns when it is on the disk and everything before it is read. Records that
   * wait for each other share one `fsync`.
   */
  append(record: JournalRecord): Promise<void> {
    return new Promise((done, failed) => {
      this.#waiting.push({ ...encode(record), done, failed });
      // It reports to those that wait.
      this.#exclusively(() => this.#appendWaiting()).catch(() => undefined);
    });
  }

  /** Makes what was read durable, whichever process wrote it. */
  async sync(): Promise<void> {
    await this.#exclusively(async () => (await this.#current()).handle.datasync());
  }

  async compact(): Promise<void> {
    await this.#exclusively(async () => {
      const generation = await this.#current();
      await write(generation.handle, encode({ t: "seal" }).bytes);
      await generation.handle.datasync();
      await this.#current();
    });
  }

  async close(): Promise<void> {
    await this.#exclusively(() => this.#leave());
  }

  /** One operation after another: each sees the records in the order of the file. */
  #exclusively<T>(work: () => Promise<T>): Promise<T> {
    const result = this.#turn.then(async () => {
      try {
        return await work();
      } catch (error) {
        // After a failed write or sync the state of the file is not known: it is read anew.
        await this.#leave();
        throw error;
      }
    });
    this.#turn = result.catch(() => undefined);
    return result.catch((error: unknown) => {
      throw toJournalError(error);
    });
  }

  async #appendWaiting(): Promise<void> {
    const group = this.#waiting;
    this.#waiting = [];
    try {
      let left = group;
      while (left.length > 0) {
        const generation = await this.#current();
        await write(generation.handle, Buffer.concat(left.map(({ bytes }) => bytes)));
        await generation.handle.datasync();
        const found = await this.#catchUp(generation);
        // What comes after a seal was in vain.
        left = left.filter(({ mark }) => !found.has(mark));
        if (left.length > 0 && !generation.isSealed) {
          throw new JournalError("the journal lost what was appended to it");
        }
      }
    } catch (error) {
      const reason = toJournalError(error);
      for (const { failed } of group) failed(reason);
      throw reason;
    }
    for (const { done } of group) done();
  }

  /** The newest generation, read to its end. */
  async #current(): Promise<Generation> {
    for (;;) {
      const generation = this.#generation ?? (await this.#enter());
      await this.#catchUp(generation);
      if (generation.isSealed) {
        await this.#writeNext(generation);
        await this.#leave();
      } else if (generation.id !== undefined) {
        return generation;
      } else {
        await this.#begin(generation);
      }
    }
  }

  async #enter(): Promise<Generation> {
    for (;;) {
      const newest = await this.#newest();
      const flags = constants.O_RDWR | constants.O_APPEND | (newest === undefined ? constants.O_CREAT : 0);
      const number = newest ?? 0;
      let handle: FileHandle;
      try {
        // For its owner alone: it holds requests and responses.
        handle = await open(this.#name(number), flags, 0o600);
      } catch (error) {
        // Another process compacted the journal meanwhile.
        if (newest !== undefined && isCode(error, "ENOENT")) continue;
        throw error;
      }
      // What is appended would be lost with the name of the file.
      await this.#syncDirectory();
      // A new file may be none: it was compacted since the directory was read.
      if (newest === undefined && (await this.#newest()) !== 0) {
        await handle.close();
        continue;
      }
      this.reader.reset();
      this.#generation = { number, handle, offset: 0, isSealed: false, id: undefined };
      return this.#generation;
    }
  }

  async #leave(): Promise<void> {
    const generation = this.#generation;
    this.#generation = undefined;
    // It was only read or synced.
    await generation?.handle.close().catch(() => undefined);
  }

  /** Writes the header of a new file. Several processes may: the first one counts. */
  async #begin(generation: Generation): Promise<void> {
    const { size } = await generation.handle.stat();
    if (size > 0 && !(await isTornHeader(generation.handle, size))) {
      throw new JournalError(`${this.path} is the file of another program`);
    }
    await write(generation.handle, encode(newHeader(generation.number, this.#id ?? randomUUID())).bytes);
    await generation.handle.datasync();
  }

  /** Applies all complete records that were not read yet, and returns their marks. */
  async #catchUp(generation: Generation): Promise<Set<string>> {
    const marks = new Set<string>();
    let pending: Buffer = Buffer.alloc(0);
    let from = generation.offset;
    for (;;) {
      const chunk = Buffer.allocUnsafe(CHUNK_BYTES);
      const { bytesRead } = await generation.handle.read(chunk, 0, CHUNK_BYTES, from);
      if (bytesRead === 0) return marks;
      from += bytesRead;
      pending = Buffer.concat([pending, chunk.subarray(0, bytesRead)]);
      let begin = 0;
      for (;;) {
        const end = pending.indexOf(0x0a, begin);
        if (end < 0) break;
        this.#applyLine(generation, pending.subarray(begin, end), marks);
        begin = end + 1;
      }
      pending = pending.subarray(begin);
    }
  }

  #applyLine(generation: Generation, line: Buffer, marks: Set<string>): void {
    const position = { offset: generation.offset, length: line.length };
    generation.offset += line.length + 1;
    const record = line.length > 0 ? decode(line) : undefined;
    if (record === undefined || generation.isSealed) return;
    if (record.t === "seal") {
      generation.isSealed = true;
    } else if (record.t === "journal") {
      this.#checkHeader(generation, record);
    } else {
      this.reader.apply(record, position);
    }
    marks.add(record.n);
  }

  #checkHeader(generation: Generation, header: Extract<JournalRecord, { t: "journal" }>): void {
    if (generation.id !== undefined) return;
    if (header.generation !== generation.number || (this.#id ?? header.id) !== header.id) {
      throw new JournalError(
        `${this.#name(generation.number)} is generation ${header.generation} of journal ${header.id}, a copy or ` +
          `another journal: move it away, or give it its own name`,
      );
    }
    generation.id = this.#id = header.id;
  }

  async #writeNext(sealed: Generation): Promise<void> {
    const number = sealed.number + 1;
    if (((await this.#newest()) ?? 0) >= number) return;
    const draft = `${this.#name(number)}.${process.pid}.${randomUUID()}.draft`;
    const handle = await open(draft, "wx", 0o600);
    try {
      await write(handle, encode(newHeader(number, sealed.id ?? randomUUID())).bytes);
      const read = (position: RecordPosition): Promise<JournalRecord> => readRecord(sealed.handle, position);
      for await (const record of this.reader.compacted(read)) await write(handle, encode(record).bytes);
      await handle.datasync();
      try {
        await link(draft, this.#name(number));
      } catch (error) {
        // Unless another process wrote the same meanwhile.
        if (((await this.#newest()) ?? 0) < number) throw error;
      }
    } finally {
      await handle.close();
      await rm(draft, { force: true });
    }
    await this.#syncDirectory();
    await this.#removeOld(number);
  }

  /** Removes the generations before this one, and the drafts that killed processes left. */
  async #removeOld(number: number): Promise<void> {
    const base = basename(this.path);
    for (const name of await readdir(dirname(this.path))) {
      const rest = name.startsWith(base) ? name.slice(base.length) : undefined;
      const [, found] = /^(?:|\.semel-([1-9][0-9]*)(?:\.[0-9a-f.-]+\.draft)?)$/.exec(rest ?? "?") ?? [];
      if (rest === undefined || (found === undefined && rest !== "")) continue;
      const isDraft = rest.endsWith(".draft");
      const generation = Number(found ?? 0);
      if (generation < number || (isDraft && generation === number)) {
        await rm(join(dirname(this.path), name), { force: true });
      }
    }
  }

  #name(number: number): string {
    return number === 0 ? this.path : `${this.path}.semel-${number}`;
  }

  /** The number of the newest generation. */
  async #newest(): Promise<number | undefined> {
    const base = basename(this.path);
    const numbers = (await readdir(dirname(this.path)))
      .filter((name) => name.startsWith(base))
      .map((name) => name.slice(base.length))
      .filter((rest) => rest === "" || /^\.semel-[1-9][0-9]*$/.test(rest))
      .map((rest) => (rest === "" ? 0 : Number(rest.slice(".semel-".length))));
    return numbers.length > 0 ? Math.max(...numbers) : undefined;
  }

  /** Makes the names of the files durable. */
  async #syncDirectory(): Promise<void> {
    if (process.platform === "win32") return;
    const directory = await open(join(dirname(this.path), "."), "r");
    try {
      await directory.sync();
    } finally {
      await directory.close();
    }
  }
}

function newHeader(generation: number, id: string): JournalRecord {
  return { t: "journal", version: 1, id, generation };
}

/** As a whole: a part of it would be a torn record. */
async function write(handle: FileHandle, bytes: Buffer): Promise<void> {
  const { bytesWritten } = await handle.write(bytes);
  if (bytesWritten !== bytes.length) throw new Error("the disk is full");
}

async function readRecord(handle: FileHandle, { offset, length }: RecordPosition): Promise<JournalRecord> {
  const line = Buffer.alloc(length);
  const { bytesRead } = await handle.read(line, 0, length, offset);
  const record = bytesRead === length ? decode(line) : undefined;
  if (record === undefined) throw new JournalError("the journal was changed by another program");
  return record;
}

/** Whether the file holds nothing but the beginnings of headers, whose writers were killed. */
async function isTornHeader(handle: FileHandle, size: number): Promise<boolean> {
  if (size > 10 * CHUNK_BYTES) return false;
  const bytes = Buffer.alloc(size);
  await handle.read(bytes, 0, size, 0);
  const lines = bytes.toString("utf8").split("\n");
  return lines.every((line) => HEADER_BEGIN.startsWith(line) || line.startsWith(HEADER_BEGIN));
}

function toJournalError(error: unknown): JournalError {
  if (error instanceof JournalError) return error;
  return new JournalError(`the journal cannot be used: ${String(error)}`, { cause: error });
}

function isCode(error: unknown, code: string): boolean {
  return error instanceof Error && "code" in error && error.code === code;
}
