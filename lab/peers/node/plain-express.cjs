// The application in express without any guard: what the peers in JavaScript are to be read beside.

'use strict';

const express = require('express');
const { work } = require('./work.cjs');

const app = express();
app.use(express.json());
app.post('/work', async (request, response) => {
  const { status, body } = await work(request.get('x-work'), request.body);
  response.status(status).json(body);
});
app.listen(Number(process.env.PORT), '127.0.0.1');
