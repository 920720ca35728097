import OpenAI from 'openai';
import { ResponsesWS } from 'openai/resources/responses/ws';
import { main, weather } from './run.mjs';

const client = (c, maxRetries = 0) => new OpenAI({ apiKey: 'key', baseURL: c.url + '/v1', maxRetries });

// APIs differ in what a request looks like, and in what of an event is text.
const chat = {
  request: (c, q, more = {}) => ({
    model: c.model,
    max_tokens: c.maxTokens,
    temperature: 0,
    messages: [
      { role: 'system', content: 'Be brief.' },
      { role: 'user', content: q },
    ],
    ...more,
  }),
  create: (c, body, options) => client(c, options?.maxRetries).chat.completions.create(body, options),
  isText: (e) => Boolean(e.choices[0]?.delta?.content),
  tools: { max_tokens: undefined, tools: [{ type: 'function', function: { name: 'weather', parameters: weather } }] },
  thinking: { reasoning_effort: 'low' },
  longest: (c) => ({ max_tokens: c.longest }),
};

const responses = {
  request: (c, q, more = {}) => ({
    model: c.model,
    max_output_tokens: c.maxTokens,
    temperature: 0,
    instructions: 'Be brief.',
    input: [{ role: 'user', content: q }],
    ...more,
  }),
  create: (c, body, options) => client(c, options?.maxRetries).responses.create(body, options),
  isText: (e) => e.type === 'response.output_text.delta',
  tools: {
    max_output_tokens: undefined,
    tools: [{ type: 'function', name: 'weather', parameters: weather, strict: false }],
  },
  thinking: { reasoning: { effort: 'low' } },
  longest: (c) => ({ max_output_tokens: c.longest }),
};

const completions = {
  request: (c, q, more = {}) => ({ model: c.model, max_tokens: c.maxTokens, temperature: 0, prompt: q, ...more }),
  create: (c, body, options) => client(c, options?.maxRetries).completions.create(body, options),
  isText: (e) => Boolean(e.choices[0]?.text),
  longest: (c) => ({ max_tokens: c.longest }),
};

async function whole(api, c, body, options) {
  const r = await api.create(c, body, options);
  c.told(r);
  return r;
}

async function stream(api, c, body) {
  const events = [];
  for await (const e of await api.create(c, { ...body, stream: true })) {
    events.push(e);
    c.told(e);
  }
  c.told('end');
  return events;
}

const common = (api) => ({
  whole: (c) => whole(api, c, api.request(c, c.question)),
  stream: (c) => stream(api, c, api.request(c, c.question)),
  thinking: (c) => whole(api, c, api.request(c, c.question, api.thinking)),
  'thinking, stream': (c) => stream(api, c, api.request(c, c.question, api.thinking)),
  abort: async (c) => {
    const leave = new AbortController();
    let n = 0;
    const body = api.request(c, c.question, { ...api.longest(c), stream: true });
    for await (const e of await api.create(c, body, { signal: leave.signal })) {
      if (n < c.heard) c.told(e);
      if (api.isText(e) && ++n === c.heard) leave.abort();
    }
    c.told('end');
  },
  errors: async (c) => {
    for (const q of c.askForErrors) {
      await c.attempt(() => whole(api, c, api.request(c, q)));
      await c.attempt(() => stream(api, c, api.request(c, q)));
    }
  },
  'unknown model': (c) => whole(api, c, api.request(c, c.question, { model: 'nobody-has-it' })),
  retries: (c) => whole(api, c, api.request(c, c.askForRetry), { maxRetries: 2 }),
  cut: async (c) => {
    await c.attempt(() => stream(api, c, api.request(c, c.askForCut)));
    await c.attempt(() => whole(api, c, api.request(c, c.askForCut)));
  },
});

function called(r) {
  const item = r.output.find((i) => i.type === 'function_call');
  return item && { type: 'function_call_output', call_id: item.call_id };
}

await main({
  chat: {
    ...common(chat),
    stream: async (c) => {
      await stream(chat, c, chat.request(c, c.question));
      await stream(chat, c, chat.request(c, c.question, { stream_options: { include_usage: true } }));
    },
    'n = 2': (c) => whole(chat, c, chat.request(c, c.question, { n: 2 })),
    'n = 2, stream': (c) => stream(chat, c, chat.request(c, c.question, { n: 2 })),
    'two turns': async (c) => {
      const body = chat.request(c, c.question);
      const r = await whole(chat, c, body);
      body.messages.push(r.choices[0].message, { role: 'user', content: c.second });
      await whole(chat, c, body);
    },
    tools: async (c) => {
      const body = chat.request(c, c.askForCall, chat.tools);
      const { message } = (await whole(chat, c, body)).choices[0];
      body.messages.push(message, { role: 'tool', tool_call_id: message.tool_calls[0].id, content: c.result });
      await whole(chat, c, body);
    },
    'tools, stream': async (c) => {
      const runner = client(c).chat.completions.runTools({
        ...chat.request(c, c.askForCall),
        max_tokens: undefined,
        stream: true,
        tools: [
          {
            type: 'function',
            function: { name: 'weather', parameters: weather, parse: JSON.parse, function: () => c.result },
          },
        ],
      });
      runner.on('chunk', (e) => c.told(e));
      c.told('end', await runner.finalContent());
    },
  },
  completions: {
    ...common(completions),
    thinking: undefined,
    'thinking, stream': undefined,
    stream: async (c) => {
      await stream(completions, c, completions.request(c, c.question));
      await stream(completions, c, completions.request(c, c.question, { stream_options: { include_usage: true } }));
    },
    'n = 2': (c) => whole(completions, c, completions.request(c, c.question, { n: 2 })),
    'n = 2, stream': (c) => stream(completions, c, completions.request(c, c.question, { n: 2 })),
  },
  models: {
    'list of models': async (c) => {
      for await (const m of client(c).models.list()) c.told(m.id, m.object);
      c.told('end');
    },
    'one model': async (c) => {
      const m = await client(c).models.retrieve(c.model);
      c.told(m.id, m.object);
    },
    'unknown model': async (c) => c.told(await client(c).models.retrieve('nobody-has-it')),
  },
  responses: {
    ...common(responses),
    tools: async (c) => {
      const body = responses.request(c, c.askForCall, responses.tools);
      const r = await whole(responses, c, body);
      body.input.push(...r.output, { ...called(r), output: c.result });
      await whole(responses, c, body);
    },
    'tools, stream': async (c) => {
      const body = responses.request(c, c.askForCall, responses.tools);
      const r = (await stream(responses, c, body)).at(-1).response;
      body.input.push(...r.output, { ...called(r), output: c.result });
      await stream(responses, c, body);
    },
    'previous response': async (c) => {
      const body = responses.request(c, c.askForCall, responses.tools);
      for (let i = 0; i < 3; i++) {
        const r = (await stream(responses, c, body)).at(-1).response;
        const call = called(r);
        body.previous_response_id = r.id;
        body.input = [call ? { ...call, output: c.result } : { role: 'user', content: c.second }];
      }
    },
    WebSocket: async (c) => {
      const ws = new ResponsesWS(client(c));
      const next = () =>
        new Promise((resolve, reject) => {
          ws.once('event', resolve);
          ws.once('error', reject);
        });
      for (const event of [{ type: 'response.create', model: c.model, input: c.question }, { type: 'response.create', input: '2' }]) {
        const heard = next();
        ws.send(event);
        c.told(await heard);
      }
      ws.close();
      c.told('end');
    },
  },
});
