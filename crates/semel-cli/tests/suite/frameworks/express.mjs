// A stock Express application. Prints its port; every payment is an effect.
import { createRequire } from "node:module";

const require = createRequire(process.argv[2] + "/");
const express = require("express");

let effects = 0;
const app = express();
app.post("/payments", (request, response) => {
  effects += 1;
  response.status(201).send("paid");
});
app.get("/effects", (request, response) => {
  response.send(String(effects));
});
const server = app.listen(0, "127.0.0.1", () => {
  console.log(server.address().port);
});
