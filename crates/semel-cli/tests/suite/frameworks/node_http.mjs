// Node's own HTTP server, which closes idle connections after a second. Prints its port; every
// payment is an effect.
import { createServer } from "node:http";

let effects = 0;
const server = createServer((request, response) => {
  request.resume();
  request.on("end", () => {
    if (request.method === "POST") {
      effects += 1;
      response.writeHead(201).end("paid");
    } else {
      response.end(String(effects));
    }
  });
});
server.keepAliveTimeout = 1000;
server.listen(0, "127.0.0.1", () => console.log(server.address().port));
