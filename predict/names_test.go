package predict

import (
	"fmt"
	"strings"
	"testing"
	"unsafe"

	"github.com/endpick/endpick"
	"github.com/endpick/endpick/predict/internal/learn"
	"github.com/stretchr/testify/require"
)

// ask returns a request for a model.
func (w *world) ask(model string) endpick.Request {
	req := w.request()
	req.Model = model
	return req
}

func (w *world) known() (names []string) {
	for _, h := range w.latency.Health() {
		names = append(names, h.Model)
	}
	return names
}

func (w *world) predicts(model, variant string) bool {
	c := w.candidate(variant, 0)
	return w.predict(w.ask(model), &c).Has != 0
}

func TestOnlyWhatWasCompletedHasAPlace(t *testing.T) {
	w := newWorld(t, synchronous())
	for i := range 1000 {
		c := w.candidate(fmt.Sprint("variant", i), 0)
		e := w.route(w.ask(fmt.Sprint("invented", i)), &c)
		if i%2 == 0 {
			w.answer(e, 100)
			w.after(e, 100)
			e.LastTokenAt, e.OutputTokens = e.Now, 10
		}
		w.latency.Done(e, &endpick.Outcome{Status: endpick.Status(1 + i%3)})
	}
	require.Empty(t, w.known())
	require.Empty(t, *w.latency.variants.Load())
	for range learn.FirstFit {
		w.finish(w.ask("real"), w.candidate("a", 0))
	}
	require.Equal(t, []string{"real"}, w.known())
	require.True(t, w.predicts("real", "a"), "also the labels of the first request were taken")
	require.EqualValues(t, learn.FirstFit, w.latency.Health()[0].TTFT.Labels)
	require.EqualValues(t, learn.FirstFit, w.latency.Health()[0].TPOT.Labels)
}

func TestTheLeastUsedModelGivesWay(t *testing.T) {
	config := synchronous()
	config.MaxModels = 3
	w := newWorld(t, config)
	finish := func(model string, times int) {
		for range times {
			w.finish(w.ask(model), w.candidate("", 0))
		}
	}
	finish("a", learn.FirstFit+10)
	finish("b", learn.FirstFit)
	finish("c", 1)
	for i := range 100 {
		// A server that accepts any name does not let them in, one after another.
		finish(fmt.Sprint("invented", i), 1)
		require.Equal(t, []string{"a", "b", "c"}, w.known())
	}
	finish("d", 2)
	require.Equal(t, []string{"a", "b", "d"}, w.known(), "used more than c, which had not learned enough to be kept")
	finish("d", learn.FirstFit)
	require.True(t, w.predicts("d", ""))
	finish("e", learn.FirstFit)
	require.Equal(t, []string{"a", "b", "d"}, w.known())
	finish("e", 1)
	require.Equal(t, []string{"a", "d", "e"}, w.known(), "used more than b")
	require.EqualValues(t, learn.FirstFit+1, (*w.latency.models.Load())["e"].used.Load(), "as often as b, and once more")
	finish("e", learn.FirstFit)
	require.True(t, w.predicts("e", ""))
	require.True(t, w.predicts("a", ""))
	require.False(t, w.predicts("b", ""))
}

// A model that has not learned enough to predict anything gives way first, however much it is used;
// of equals, the one whose name comes first.
func TestWhoGivesWayFirst(t *testing.T) {
	w := newWorld(t, synchronous())
	w.many(learn.FirstFit, "", 0)
	for range learn.FirstFit - 1 {
		w.finish(w.ask("unlearned"), w.candidate("", 0))
	}
	models := *w.latency.models.Load()
	models["unlearned"].used.Store(1000)
	require.Equal(t, "unlearned", leastUsed(models).name)
	for _, name := range []string{"x", "y", "z"} {
		models[name] = w.latency.newModel(name)
	}
	for range 20 { // maps have no order
		require.Equal(t, "x", leastUsed(models).name)
	}
}

// Names that are used no more leave within some thousand requests, however much they were used.
func TestUsesAge(t *testing.T) {
	config := synchronous()
	config.MaxModels = 1
	config.RefitEvery = 1 << 20
	w := newWorld(t, config)
	for range 10 * agingAfter {
		w.finish(w.ask("old"), w.candidate("", 0))
	}
	n := 0
	for ; w.known()[0] == "old"; n++ {
		w.finish(w.ask("new"), w.candidate("", 0))
	}
	require.InDelta(t, agingAfter, n, agingAfter/2)
}

// The uses of the name that waits, by hand: those of others count against it.
func TestWhoWaitsForAPlace(t *testing.T) {
	var w waiting
	for i, x := range []struct {
		name    string
		used    uint64
		learned bool
		want    bool
	}{
		{"a", 1, false, false}, // a 1
		{"a", 2, false, false}, // a 2
		{"b", 0, false, false}, // a 1
		{"b", 0, false, false}, // a 0
		{"b", 1, false, false}, // b 1
		{"b", 1, false, true},
		{"b", 1, false, false}, // b 1: it has begun again
		{"a", 0, false, false},
		{"a", 0, true, false}, // a 1: it is not more than nothing by enough to replace what has learned
	} {
		require.Equal(t, x.want, w.outdoes(x.name, x.used, x.learned), i)
	}
	for i := 2; i <= learn.FirstFit; i++ {
		require.Equal(t, i == learn.FirstFit, w.outdoes("a", 0, true), i)
	}
}

// However one more than there are places alternate, all but one are predicted; and the one that
// is used more than another takes its place.
func TestOneVariantMoreThanThereIsRoomFor(t *testing.T) {
	w := newWorld(t, synchronous())
	name := func(i int) string { return fmt.Sprint("variant", i) }
	for i := range maxVariants + 1 {
		w.slow[name(i)] = float64(1 + i)
		w.many(1, name(i), 0)
	}
	w.many(4, "rare", 0)
	require.Nil(t, findVariant(*w.latency.variants.Load(), "rare"), "more than another, but not enough to be learned")
	for range 3 * learn.FirstFit {
		for i := range maxVariants + 1 {
			w.finish(w.request(), w.candidate(name(i), 0))
		}
	}
	for i := range maxVariants + 1 {
		require.Equal(t, i < maxVariants, w.predicts("m", name(i)), "variant %d", i)
	}
	for range 2 * learn.FirstFit {
		for i := range maxVariants + 1 {
			if i != 3 {
				w.finish(w.request(), w.candidate(name(i), 0))
			}
		}
	}
	require.True(t, w.predicts("m", name(maxVariants)))
	require.False(t, w.predicts("m", name(3)), "its place was taken")
	require.True(t, w.predicts("m", name(2)))
	last := findVariant(*w.latency.variants.Load(), name(maxVariants))
	require.Greater(t, last.used.Load(), uint64(3*learn.FirstFit/2), "it began with as many uses as 3")
	require.Len(t, *w.latency.variants.Load(), maxVariants)
	h := w.latency.Health()[0].TTFT
	require.EqualValues(t, 3*learn.FirstFit+1, int(h.Labels)-h.Samples, "its samples are gone, and no others")
}

// A variant is predicted by a model fitted after the variant had enough labels, not by an
// earlier one.
func TestAVariantWaitsForItsModel(t *testing.T) {
	w := newWorld(t, synchronous())
	w.many(2*learn.FirstFit, "old", 0)
	w.latency.trainer.Manual = true
	for range 2 * learn.FirstFit {
		w.finish(w.request(), w.candidate("new", 1))
		require.False(t, w.predicts("m", "new"))
	}
	for _, l := range (*w.latency.models.Load())["m"].learners[:e2e] {
		require.NoError(t, l.Refit())
	}
	require.True(t, w.predicts("m", "new"))
}

// The place of a variant that gave way is given without what was known of it, and a request of it
// that is still under way is no label of another.
func TestAVariantThatGaveWay(t *testing.T) {
	w := newWorld(t, synchronous())
	whole, c := w.whole(), w.candidate("old", 0)
	for range learn.FirstFit {
		w.finish(whole, c)
	}
	e := w.route(w.request(), &c)
	for i := range maxVariants {
		w.many(learn.FirstFit+1, fmt.Sprint(i), 0) // streamed, so no label for the whole latency
	}
	heir := w.candidate((*w.latency.variants.Load())[0].name, 0)
	require.Nil(t, findVariant(*w.latency.variants.Load(), "old"))
	require.Zero(t, w.predict(whole, &heir).Has&endpick.E2E)
	w.finish(whole, heir)
	require.Zero(t, w.predict(whole, &heir).Has&endpick.E2E, "nor after its first one")
	w.answer(e, 0)
	labels := w.labels()
	w.latency.Done(e, &endpick.Outcome{})
	require.Nil(t, findVariant(*w.latency.variants.Load(), "old"), "once is not more than the others")
	require.Equal(t, labels, w.labels())
}

func TestLongNamesAreNotLearned(t *testing.T) {
	w := newWorld(t, synchronous())
	w.finish(w.ask(strings.Repeat("x", maxName+1)), w.candidate("", 0))
	w.finish(w.ask("m"), w.candidate(strings.Repeat("x", maxName+1), 0))
	require.Empty(t, w.known())
	w.finish(w.ask(strings.Repeat("x", maxName)), w.candidate(strings.Repeat("y", maxName), 0))
	require.Len(t, w.known(), 1)
}

func TestAPlaceKeepsNoBody(t *testing.T) {
	w := newWorld(t, synchronous())
	body := strings.Repeat("model", 1000)
	w.finish(w.ask(body[:5]), w.candidate(body[5:10], 0))
	name := w.latency.Health()[0].Model
	require.Equal(t, "model", name)
	require.NotSame(t, unsafe.StringData(body), unsafe.StringData(name))
	require.NotSame(t, unsafe.StringData(body[5:]), unsafe.StringData((*w.latency.variants.Load())[0].name))
}

// A candidate's prediction in a batch equals its prediction alone, whatever else is in the batch:
// the row of an unknown variant is left out and the others keep theirs, as they do their pace.
func TestPredictedTogetherIsPredictedAlone(t *testing.T) {
	w := newWorld(t, synchronous())
	w.slow["b"] = 5
	for i := range 600 {
		req := w.request()
		req.Stream = i%3 > 0
		c := w.candidate([]string{"a", "b"}[i%2], uint32(i%5))
		c.KVUsage = float64(i%10) / 10 // many buckets, so that upper bounds differ
		w.finish(req, c)
	}
	for range 50 { // one of them is slow
		w.latency.states.At(endpick.EndpointRef{Slot: 1, Generation: 1}).pace.Add(w.now.UnixNano(), 3, 0.1)
	}
	for _, stream := range []bool{true, false} {
		req := w.request()
		req.Stream = stream
		req = req.At(w.now, 0, 1)
		var together []endpick.Candidate
		for i := range 30 {
			c := w.candidate([]string{"unknown", "a", "b", "a", "unknown", "b"}[i%6], uint32(i%7))
			c.KVUsage = float64(i%10) / 10
			together = append(together, c)
		}
		alone := append([]endpick.Candidate(nil), together...)
		w.latency.Predict(&req, together)
		factors := map[float64]bool{}
		for i := range alone {
			w.latency.Predict(&req, alone[i:i+1])
			require.Equal(t, alone[i].Prediction, together[i].Prediction, "candidate %d", i)
			require.Equal(t, alone[i].Endpoint.Variant != "unknown", alone[i].Prediction.Has != 0)
			if p := alone[i].Prediction; p.Has != 0 {
				factors[float64(p.TTFTUpper)/float64(p.TTFT)] = true
			}
		}
		require.Greater(t, len(factors), 4, "or the rows could be confused unseen")
	}
}
