import Anthropic from '@anthropic-ai/sdk';
import { main, weather } from './run.mjs';

const client = (c, maxRetries = 0) => new Anthropic({ apiKey: 'key', baseURL: c.url, maxRetries });

const request = (c, q, more = {}) => ({
  model: c.model,
  max_tokens: c.maxTokens,
  temperature: 0,
  system: [{ type: 'text', text: 'Be brief.', cache_control: { type: 'ephemeral' } }],
  messages: [{ role: 'user', content: q }],
  ...more,
});

const thinking = { thinking: { type: 'enabled', budget_tokens: 1024 } };
const tools = { max_tokens: 64, tools: [{ name: 'weather', input_schema: weather }] };

async function whole(c, body, options) {
  const r = await client(c, options?.maxRetries).messages.create(body, options);
  c.told(r);
  return r;
}

async function stream(c, body) {
  const s = client(c).messages.stream(body);
  s.on('streamEvent', (e) => c.told(e));
  const r = await s.finalMessage();
  c.told('end', r);
  return r;
}

// turn goes on: with what the tool has returned, or with the next question.
function turn(c, body, r) {
  const call = r.content.find((b) => b.type === 'tool_use');
  const content = call ? [{ type: 'tool_result', tool_use_id: call.id, content: c.result }] : c.second;
  body.messages.push({ role: 'assistant', content: r.content }, { role: 'user', content });
  return body;
}

await main({
  messages: {
    whole: (c) => whole(c, request(c, c.question)),
    stream: (c) => stream(c, request(c, c.question)),
    tools: async (c) => {
      const body = request(c, c.askForCall, tools);
      await whole(c, turn(c, body, await whole(c, body)));
    },
    'tools, stream': async (c) => {
      const body = request(c, c.askForCall, { ...tools, ...thinking });
      await stream(c, turn(c, body, await stream(c, body)));
    },
    thinking: (c) => whole(c, request(c, c.question, thinking)),
    'thinking, stream': (c) => stream(c, request(c, c.question, thinking)),
    'two turns': async (c) => {
      const body = request(c, c.question);
      await whole(c, turn(c, body, await whole(c, body)));
    },
    'count tokens': async (c) => {
      const { model, messages } = request(c, c.question);
      c.told(await client(c).messages.countTokens({ model, messages }));
    },
    abort: async (c) => {
      const s = await client(c).messages.create({ ...request(c, c.question), max_tokens: c.longest, stream: true });
      let n = 0;
      for await (const e of s) {
        if (n < c.heard) c.told(e);
        if (e.type === 'content_block_delta' && ++n === c.heard) s.controller.abort();
      }
      c.told('end');
    },
    errors: async (c) => {
      for (const q of c.askForErrors) {
        await c.attempt(() => whole(c, request(c, q)));
        await c.attempt(() => stream(c, request(c, q)));
      }
    },
    'unknown model': (c) => whole(c, request(c, c.question, { model: 'nobody-has-it' })),
    retries: (c) => whole(c, request(c, c.askForRetry), { maxRetries: 2 }),
    cut: async (c) => {
      await c.attempt(() => stream(c, request(c, c.askForCut)));
      await c.attempt(() => whole(c, request(c, c.askForCut)));
    },
  },
  models: {
    'list of models': async (c) => {
      for await (const m of client(c).models.list()) c.told(m.id);
      c.told('end');
    },
    'one model': async (c) => c.told((await client(c).models.retrieve(c.model)).id),
  },
});
