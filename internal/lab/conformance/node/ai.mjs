import { generateText, jsonSchema, stepCountIs, streamText, tool } from 'ai';
import { createAnthropic } from '@ai-sdk/anthropic';
import { createOpenAI } from '@ai-sdk/openai';
import { main, weather } from './run.mjs';

globalThis.AI_SDK_LOG_WARNINGS = false;

const openai = (c) => createOpenAI({ apiKey: 'key', baseURL: c.url + '/v1' });

const settings = (c, prompt, more = {}) => ({
  system: 'Be brief.',
  prompt,
  maxOutputTokens: c.maxTokens,
  maxRetries: 0,
  temperature: 0,
  ...more,
});

const tools = (c) => ({
  maxOutputTokens: 64,
  tools: { weather: tool({ inputSchema: jsonSchema(weather), execute: () => c.result }) },
  stopWhen: stepCountIs(2),
});

async function whole(model, c, s) {
  const r = await generateText({ model, ...s });
  for (const step of r.steps) c.told(step.content, step.finishReason, step.usage, step.response.body);
}

async function stream(model, c, s) {
  const r = streamText({ model, includeRawChunks: true, onError: () => {}, ...s });
  for await (const part of r.fullStream) {
    if (part.type === 'error') c.told('error', part.error?.name, part.error?.statusCode ?? '', part.error?.message);
    else if (part.type.startsWith('start') || part.type.startsWith('finish')) {
      // They have the headers, with the date, and what was sent.
      c.told(part.type, part.finishReason ?? '', part.usage ?? part.totalUsage ?? '');
    } else c.told(part);
  }
  c.told('end');
}

// An API is told apart by what a model is made with.
const scenarios = (of, options) => ({
  whole: (c) => whole(of(c, c.model), c, settings(c, c.question)),
  stream: (c) => stream(of(c, c.model), c, settings(c, c.question)),
  tools: (c) => whole(of(c, c.model), c, settings(c, c.askForCall, tools(c))),
  'tools, stream': (c) => stream(of(c, c.model), c, settings(c, c.askForCall, tools(c))),
  thinking: (c) => whole(of(c, c.model), c, settings(c, c.question, options)),
  'thinking, stream': (c) => stream(of(c, c.model), c, settings(c, c.question, options)),
  abort: async (c) => {
    const leave = new AbortController();
    const s = settings(c, c.question, { maxOutputTokens: c.longest, abortSignal: leave.signal });
    let n = 0;
    for await (const text of streamText({ model: of(c, c.model), onError: () => {}, ...s }).textStream) {
      if (n < c.heard) c.told(text);
      if (++n === c.heard) leave.abort();
    }
    c.told('end');
  },
  errors: async (c) => {
    for (const q of c.askForErrors) {
      await c.attempt(() => whole(of(c, c.model), c, settings(c, q)));
      await c.attempt(() => stream(of(c, c.model), c, settings(c, q)));
    }
  },
  'unknown model': (c) => whole(of(c, 'nobody-has-it'), c, settings(c, c.question)),
  retries: (c) => whole(of(c, c.model), c, settings(c, c.askForRetry, { maxRetries: 2 })),
  cut: async (c) => {
    await c.attempt(() => stream(of(c, c.model), c, settings(c, c.askForCut)));
    await c.attempt(() => whole(of(c, c.model), c, settings(c, c.askForCut)));
  },
});

const reasoning = { providerOptions: { openai: { reasoningEffort: 'low', forceReasoning: true } } };

await main({
  chat: scenarios((c, model) => openai(c).chat(model), reasoning),
  responses: scenarios((c, model) => openai(c).responses(model), reasoning),
  messages: scenarios((c, model) => createAnthropic({ apiKey: 'key', baseURL: c.url + '/v1' })(model), {
    providerOptions: { anthropic: { thinking: { type: 'enabled', budgetTokens: 1024 } } },
  }),
});
