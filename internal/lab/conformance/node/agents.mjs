import OpenAI from 'openai';
import {
  Agent,
  OpenAIChatCompletionsModel,
  OpenAIResponsesModel,
  Runner,
  setTracingDisabled,
  tool,
} from '@openai/agents';
import { z } from 'zod';
import { main } from './run.mjs';

setTracingDisabled(true);

const client = (c, maxRetries = 0) => new OpenAI({ apiKey: 'key', baseURL: c.url + '/v1', maxRetries });

function agent(Model, c, { model = c.model, retries = 0, tools = false, ...settings } = {}) {
  return new Agent({
    name: 'conformance',
    instructions: 'Be brief.',
    model: new Model(client(c, retries), model),
    // It takes an answer that a limit has ended for a failure.
    modelSettings: { maxTokens: c.limit ?? undefined, temperature: 0, ...settings },
    tools: tools
      ? [
          tool({
            name: 'weather',
            description: 'The weather in a city.',
            parameters: z.object({ city: z.string() }),
            execute: () => c.result,
          }),
        ]
      : [],
  });
}

const runner = () => new Runner({ tracingDisabled: true });

async function whole(a, c, q) {
  const r = await runner().run(a, q);
  for (const one of r.rawResponses) c.told(one.output, one.usage);
  c.told('end', r.finalOutput ?? '');
}

async function stream(a, c, q, signal, enough = () => {}) {
  const r = await runner().run(a, q, { stream: true, signal });
  for await (const e of r) {
    if (e.type === 'raw_model_stream_event' && enough(e.data) !== true) c.told(e.data);
  }
  await r.completed;
  c.told('end', signal?.aborted ? 'left' : (r.finalOutput ?? ''));
}

const scenarios = (Model) => ({
  whole: (c) => whole(agent(Model, c), c, c.question),
  stream: (c) => stream(agent(Model, c), c, c.question),
  tools: (c) => whole(agent(Model, c, { tools: true }), c, c.askForCall),
  'tools, stream': (c) => stream(agent(Model, c, { tools: true }), c, c.askForCall),
  thinking: (c) => whole(agent(Model, c, { reasoning: { effort: 'low' } }), c, c.question),
  'thinking, stream': (c) => stream(agent(Model, c, { reasoning: { effort: 'low' } }), c, c.question),
  abort: async (c) => {
    const leave = new AbortController();
    let n = 0;
    await c.attempt(() =>
      stream(agent(Model, c, { maxTokens: c.longest }), c, c.question, leave.signal, (e) => {
        if (n >= c.heard) return true; // more than what was waited for
        if (e.type === 'output_text_delta' && ++n === c.heard) leave.abort();
      }),
    );
  },
  errors: async (c) => {
    for (const q of c.askForErrors) {
      await c.attempt(() => whole(agent(Model, c), c, q));
      await c.attempt(() => stream(agent(Model, c), c, q));
    }
  },
  'unknown model': (c) => whole(agent(Model, c, { model: 'nobody-has-it' }), c, c.question),
  retries: (c) => whole(agent(Model, c, { retries: 2 }), c, c.askForRetry),
  cut: async (c) => {
    await c.attempt(() => stream(agent(Model, c), c, c.askForCut));
    await c.attempt(() => whole(agent(Model, c), c, c.askForCut));
  },
});

await main({ chat: scenarios(OpenAIChatCompletionsModel), responses: scenarios(OpenAIResponsesModel) });
