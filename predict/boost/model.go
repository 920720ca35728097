package boost

import (
	"encoding"
	"math"
	"slices"

	"github.com/endpick/endpick/internal/codec"
)

const modelKind = "EPBM"

var (
	_ encoding.BinaryMarshaler   = (*Model)(nil)
	_ encoding.BinaryAppender    = (*Model)(nil)
	_ encoding.BinaryUnmarshaler = (*Model)(nil)
)

// AppendBinary appends the saved form of the model. Equal models have equal bytes. The zero Model is ErrNoData.
func (m *Model) AppendBinary(dst []byte) ([]byte, error) {
	if m.config.Features == 0 {
		return dst, errNotFitted
	}
	var e codec.Encoder
	c := &m.config
	e.Int(c.Features)
	e.Int(c.Trees)
	e.Float(c.LearningRate)
	e.Float(c.Shrinkage)
	e.Int(len(c.Prior))
	for _, f := range c.Prior {
		e.Uint8(uint8(f))
	}
	e.Int(m.rows)
	e.Int(m.skipped)
	e.Float(m.base)
	e.Float(m.prior.floor)
	e.Floats(m.prior.weights)
	e.Floats(m.gained)
	for i := range m.quantisers {
		q := &m.quantisers[i]
		e.Float(q.low)
		e.Uint64(uint64(q.base))
		e.Uint8(q.shift)
		e.Uint8(uint8(len(q.cuts)))
		for _, cut := range q.cuts {
			e.Uint8(uint8(cut))
			e.Uint8(uint8(cut >> 8))
		}
	}
	e.Int(len(m.trees))
	for i := range m.trees {
		t := &m.trees[i]
		for l := range treeDepth {
			e.Uint8(t.feature[l])
			e.Uint8(uint8(t.threshold[l]))
		}
		for _, v := range t.leaf {
			e.Float32(v)
		}
	}
	return codec.Seal(dst, modelKind, e.B), nil
}

// MarshalBinary returns the saved form of the model.
func (m *Model) MarshalBinary() ([]byte, error) { return m.AppendBinary(nil) }

// UnmarshalBinary replaces the model by a saved one. Damaged bytes give ErrFormat, those of another
// version ErrVersion, and leave the model as it was. Unlike all other methods, it must not run
// concurrently with others.
func (m *Model) UnmarshalBinary(b []byte) error {
	content, rest, err := codec.Unseal(b, modelKind)
	if err != nil {
		return err
	}
	d := codec.Decoder{B: content}
	var n Model
	c := &n.config
	c.Features = d.Int("features", 1, maxFeatures)
	c.Trees = d.Int("trees", 1, maxTrees)
	c.LearningRate = d.Number("learning rate")
	c.Shrinkage = d.Number("shrinkage")
	for range d.Int("prior columns", 0, maxFeatures) {
		c.Prior = append(c.Prior, int(d.Uint8()))
	}
	n.rows = d.Int("rows", 0, math.MaxInt32)
	n.skipped = d.Int("skipped rows", 0, math.MaxInt32)
	n.base = d.Number("base")
	n.prior.columns = c.Prior
	n.prior.floor = d.Number("prior floor")
	n.prior.weights = d.Floats("prior weights")
	n.gained = d.Floats("importances")
	n.quantisers = make([]quantiser, c.Features)
	for i := range n.quantisers {
		n.quantisers[i].decode(&d)
	}
	n.trees = make([]tree, d.Count("trees", treeBytes))
	for i := range n.trees {
		n.trees[i].decode(&d, c.Features)
	}
	if err := d.End(); err != nil {
		return err
	}
	if err := c.validate(); err != nil {
		d.Fail("%v", err)
	}
	if len(n.trees) > maxTrees || len(n.gained) != c.Features ||
		n.prior.floor < 0 || (n.prior.floor > 0) != (len(c.Prior) > 0) ||
		len(n.prior.weights) != 0 && len(n.prior.weights) != len(c.Prior)+1 ||
		n.prior.floor > 0 && len(n.prior.weights) == 0 || len(rest) > 0 {
		d.Fail("parts do not match")
	}
	if d.Err != nil {
		return d.Err
	}
	n.findUsed()
	*m = n
	return nil
}

const treeBytes = 2*treeDepth + 4*treeLeafs

func (q *quantiser) decode(d *codec.Decoder) {
	q.low = d.Number("lowest value")
	q.base = int64(d.Uint64())
	q.shift = d.Uint8()
	if q.shift > 52 || q.base < 0 || q.base > (2047<<52)>>q.shift-cellCount {
		d.Fail("cells from %d with %d bits", q.base, q.shift)
		return
	}
	var cuts []uint16
	for range d.Uint8() {
		cuts = append(cuts, uint16(d.Uint8())|uint16(d.Uint8())<<8)
	}
	ascend := !slices.ContainsFunc(cuts, func(c uint16) bool { return c < 1 || c >= cellCount })
	for i := 1; i < len(cuts); i++ {
		ascend = ascend && cuts[i-1] < cuts[i]
	}
	if len(cuts) > maxBins-2 || !ascend {
		d.Fail("cuts are out of order")
		return
	}
	q.setCuts(cuts)
}

func (t *tree) decode(d *codec.Decoder, features int) {
	for l := range treeDepth {
		t.feature[l] = d.Uint8()
		b := d.Uint8()
		if int(t.feature[l]) >= features || b == 0 || b > maxBins {
			d.Fail("test of feature %d at bin %d", t.feature[l], b)
			return
		}
		t.threshold[l] = uint64(b) * lowBits
	}
	for i := range t.leaf {
		v := d.Float32()
		if v != v || v > math.MaxFloat32 || v < -math.MaxFloat32 {
			d.Fail("leaf is %v", v)
			return
		}
		t.leaf[i] = v
	}
}

// Importance returns each feature's share of what the trees have explained. The shares add up to 1,
// or are all 0 if no tree found anything to explain.
func (m *Model) Importance() []float64 {
	total := 0.0
	for _, g := range m.gained {
		total += g
	}
	shares := make([]float64, len(m.gained))
	if total > 0 {
		for i, g := range m.gained {
			shares[i] = g / total
		}
	}
	return shares
}

// Rows returns how many rows the model was fitted to.
func (m *Model) Rows() int { return m.rows }

// Skipped returns how many rows were unusable.
func (m *Model) Skipped() int { return m.skipped }

// Trees returns how many trees the model has: none if there were too few rows for any.
func (m *Model) Trees() int { return len(m.trees) }

// Features returns the number of values in a row.
func (m *Model) Features() int { return m.config.Features }
