import { Ollama } from 'ollama';
import { main, weather } from './run.mjs';

const request = (c, content, more = {}) => ({
  model: c.model,
  messages: [
    { role: 'system', content: 'Be brief.' },
    { role: 'user', content, ...more.message },
  ],
  options: { num_predict: c.maxTokens, temperature: 0 },
  ...more.body,
});
const client = (c) => new Ollama({ host: c.url });

async function whole(c, body) {
  const r = await client(c).chat({ ...body, stream: false });
  c.told(r);
  return r;
}

async function read(c, events) {
  for await (const e of await events) c.told(e);
  c.told('end');
}

const stream = (c, body) => read(c, client(c).chat({ ...body, stream: true }));
const tools = { body: { tools: [{ type: 'function', function: { name: 'weather', description: 'of a city', parameters: weather } }] } };
const picture = { message: { images: [new Uint8Array([137, 80, 78, 71])] } };

await main({
  Ollama: {
    whole: (c) => whole(c, request(c, c.question)),
    stream: (c) => stream(c, request(c, c.question)),
    generate: async (c) => {
      const body = { model: c.model, prompt: c.question, system: 'Be brief.', options: { num_predict: c.maxTokens }, keep_alive: '5m' };
      c.told(await client(c).generate(body));
      await read(c, client(c).generate({ ...body, stream: true }));
    },
    tools: async (c) => {
      const body = request(c, c.question, tools);
      const { message } = await whole(c, body);
      body.messages.push(message, { role: 'tool', tool_name: 'weather', content: c.result });
      await whole(c, body);
    },
    'tools, stream': (c) => stream(c, request(c, c.question, tools)),
    thinking: (c) => whole(c, request(c, c.question, { body: { think: true } })),
    'thinking, stream': (c) => stream(c, request(c, c.question, { body: { think: true } })),
    images: async (c) => {
      await whole(c, request(c, c.question, picture));
      await stream(c, request(c, c.question, picture));
    },
    embeddings: async (c) => c.told(await client(c).embed({ model: c.model, input: [c.question, c.second] })),
    'two turns': async (c) => {
      const body = request(c, c.question);
      body.messages.push((await whole(c, body)).message, { role: 'user', content: c.second });
      await whole(c, body);
    },
    abort: async (c) => {
      const events = await client(c).chat({ ...request(c, c.question), options: { num_predict: c.longest }, stream: true });
      let n = 0;
      try {
        for await (const e of events) {
          if (n < c.heard) c.told(e);
          if (++n === c.heard) events.abort();
        }
      } finally {
        c.told('end');
      }
    },
    errors: async (c) => {
      for (const q of c.askForErrors) {
        await c.attempt(() => whole(c, request(c, q)));
        await c.attempt(() => stream(c, request(c, q)));
      }
    },
    'unknown model': (c) => whole(c, { ...request(c, c.question), model: 'nobody-has-it' }),
  },
  models: {
    'list of models': async (c) => {
      for (const m of (await client(c).list()).models) c.told(m.name);
      c.told(await client(c).version());
    },
    'one model': async (c) => c.told(await client(c).show({ model: c.model })),
  },
});
