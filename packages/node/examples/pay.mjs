// One payment: `pay.mjs URL INTENT JOURNAL BODY`.
//
// Run it again after any failure, a SIGKILL included: the same key is sent, and the response is the same.
// Prints the body. Exit codes: 0 final success, 3 final rejection, 4 unknown, 5 gave up.

import { Client, FileJournal, GaveUp, OutcomeUnknown, Rejected } from "semel/client";

const [url, intent, journal, body] = process.argv.slice(2);
if (body === undefined) {
  console.error("usage: pay.mjs URL INTENT JOURNAL BODY");
  process.exit(2);
}

const client = new Client({ journal: new FileJournal(journal) });
const headers = { "content-type": "application/json" };
try {
  const response = await client.call(intent, url, { method: "POST", headers, body });
  console.log(await response.text());
  process.exitCode = response.ok ? 0 : 3;
} catch (error) {
  if (error instanceof OutcomeUnknown) process.exitCode = 4;
  else if (error instanceof GaveUp) process.exitCode = 5;
  else if (error instanceof Rejected) process.exitCode = 3;
  else throw error;
  console.error(error.message);
} finally {
  await client.close();
}
