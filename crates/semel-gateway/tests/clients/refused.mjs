// Sends requests that the gateway refuses before it has read them, and counts the responses that
// arrive: refused URL STATUS TRIES [KEY]
const [url, status, tries, key] = process.argv.slice(2);
const body = new Uint8Array(4 << 20).fill(120);
const headers = { "x-account": "a", ...(key && { "idempotency-key": key }) };
let received = 0;
for (let i = 0; i < Number(tries); i++) {
  try {
    const response = await fetch(url, { method: "POST", headers, body });
    await response.arrayBuffer();
    received += response.status === Number(status);
  } catch (error) {
    console.error(error.cause ?? error);
  }
}
console.log(received);
