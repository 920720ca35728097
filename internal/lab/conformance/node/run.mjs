// Runs the scenarios that standard input names, and says what a client was told in
// each: {api, scenario, told} a line.
import { text } from 'node:stream/consumers';

export async function main(apis) {
  const { prompts, runs } = JSON.parse(await text(process.stdin));
  for (const { api, scenario, url } of runs) {
    const does = apis[api]?.[scenario];
    if (!does) continue;
    const lines = [];
    const told = (...all) =>
      lines.push(all.map((v) => (typeof v === 'string' ? v : JSON.stringify(v))).join(' '));
    // A failure is something that a client is told.
    const attempt = async (f) => {
      try {
        return await f();
      } catch (e) {
        told('error', e?.constructor?.name, e?.status ?? e?.statusCode ?? '', e?.message ?? String(e));
      }
    };
    await attempt(() => does({ url, told, attempt, ...prompts }));
    console.log(JSON.stringify({ api, scenario, told: lines.join('\n') + '\n' }));
  }
  process.exit(0); // whatever a client still keeps open
}

export const weather = {
  type: 'object',
  properties: { city: { type: 'string' } },
  required: ['city'],
  additionalProperties: false,
};
