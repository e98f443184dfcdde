// The records of the file journal: one line each, with a checksum.

import { createHash, randomBytes } from "node:crypto";

import { JournalError } from "./errors.js";
import type { Headers } from "./messages.js";

export type JournalRecord =
  | {
      readonly t: "journal";
      readonly version: 1;
      /** Of the journal; all its generations have it. */
      readonly id: string;
      readonly generation: number;
    }
  | {
      readonly t: "open";
      readonly intent: string;
      readonly key: string;
      readonly fingerprint: string;
      readonly method: string;
      readonly url: string;
      readonly headers: Headers;
      /** In base64, like all bodies. */
      readonly body: string;
      readonly created: number;
      readonly expires: number;
      readonly form?: string | undefined;
      /** After a compaction, for a record `share` before it. */
      readonly shared?: boolean | undefined;
    }
  /** Another process than the one that stored an intent is about to send it. */
  | { readonly t: "share"; readonly intent: string; readonly key: string }
  | {
      readonly t: "note";
      readonly intent: string;
      readonly key: string;
      readonly expires?: number | undefined;
      readonly unknown: boolean;
      readonly operation?: string | undefined;
    }
  | {
      readonly t: "done";
      readonly intent: string;
      readonly key: string;
      readonly status: number;
      readonly headers: Headers;
      readonly body: string | null;
      readonly at: number;
      /** It does not count after a record `share`. */
      readonly unless_shared?: boolean | undefined;
    }
  | { readonly t: "forget"; readonly intent: string; readonly key: string }
  /** Nothing after it counts: the next generation of the file has what came before it. */
  | { readonly t: "seal" };

/** Marks a record, so that its writer finds it again. */
type Marked = JournalRecord & { readonly n: string };

const LINE = /^(.*)#([0-9a-f]{16})$/s;

/** A line feed before it too: what a killed process wrote of its last record stays a line of its own. */
export function encode(record: JournalRecord): { bytes: Buffer; mark: string } {
  const mark = randomBytes(9).toString("base64url");
  const marked: Marked = { ...record, n: mark };
  // No "#" in the text: a torn record never looks like a complete one.
  const text = JSON.stringify(marked).replaceAll("#", "\\u0023");
  return { bytes: Buffer.from(`\n${text}#${checksum(text)}\n`), mark };
}

/** A line without its line feed; undefined where it is empty or torn. */
export function decode(line: Buffer): Marked | undefined {
  const match = LINE.exec(line.toString("utf8"));
  const [, text, sum] = match ?? [];
  // Torn: its writer died, and never sent what it says.
  if (text === undefined || sum === undefined) return undefined;
  if (checksum(text) !== sum) {
    throw new JournalError(
      "the journal is damaged, and a key may be lost: restore the file, or find out what is missing before you remove it",
    );
  }
  const record = JSON.parse(text) as Marked;
  if (record.t === "journal" && record.version !== 1) {
    throw new JournalError(`the journal has version ${String(record.version)}, and this package knows 1`);
  }
  return record;
}

function checksum(text: string): string {
  return createHash("sha256").update(text).digest("hex").slice(0, 16);
}
