package kartosql;

import java.nio.ByteBuffer;
import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import org.apache.hadoop.fs.FileStatus;
import org.apache.hadoop.fs.Path;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.expressions.Attribute;
import org.apache.spark.sql.catalyst.expressions.BindReferences;
import org.apache.spark.sql.catalyst.expressions.Expression;
import org.apache.spark.sql.catalyst.expressions.GenericInternalRow;
import org.apache.spark.sql.catalyst.expressions.InterpretedPredicate;
import org.apache.spark.sql.catalyst.types.DataTypeUtils;
import org.apache.spark.sql.execution.datasources.FileIndex;
import org.apache.spark.sql.execution.datasources.FileStatusWithMetadata;
import org.apache.spark.sql.execution.datasources.PartitionDirectory;
import org.apache.spark.sql.types.BinaryType;
import org.apache.spark.sql.types.BooleanType;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.DateType;
import org.apache.spark.sql.types.Decimal;
import org.apache.spark.sql.types.DoubleType;
import org.apache.spark.sql.types.IntegerType;
import org.apache.spark.sql.types.StringType;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.unsafe.types.UTF8String;
import scala.collection.Iterator;
import scala.collection.immutable.Seq;

/**
 * The files of a scan, with the values of the partition columns that each has.
 *
 * Spark reads them as it reads the files of its own partitioned tables, but nothing is listed, and no value is taken
 * from a path. Compiled in the driver when it is first needed; executors never see it.
 */
public final class ListedFiles implements FileIndex {
  private final Path root;
  private final StructType schema;
  private final FileStatus[] files;
  private final InternalRow[] values;
  private long size = 0;

  /** Columns follow each other in data: paths, sizes, then those of the schema; see listing.py. */
  public ListedFiles(String root, StructType schema, Integer count, byte[] data) throws Exception {
    ByteBuffer buffer = ByteBuffer.wrap(data);
    this.root = new Path(root);
    this.schema = schema;
    this.files = new FileStatus[count];
    this.values = new InternalRow[count];
    byte[][] paths = texts(buffer, count);
    for (int i = 0; i < count; i++) {
      long length = buffer.getLong();
      this.files[i] = new FileStatus(length, false, 1, length, 0L, new Path(new String(paths[i], "UTF-8")));
      this.size += length;
    }
    Object[][] rows = new Object[count][schema.length()];
    for (int c = 0; c < schema.length(); c++) {
      DataType type = schema.fields()[c].dataType();
      boolean isDecimal = type instanceof org.apache.spark.sql.types.DecimalType;
      if (type instanceof StringType || type instanceof BinaryType || isDecimal) {
        byte[][] found = texts(buffer, count);
        for (int i = 0; i < count; i++) {
          if (type instanceof BinaryType) rows[i][c] = found[i];
          else if (isDecimal) rows[i][c] = Decimal.apply(new java.math.BigDecimal(new String(found[i], "UTF-8")), 20, 0);
          else rows[i][c] = UTF8String.fromBytes(found[i]);
        }
      } else {
        for (int i = 0; i < count; i++) {
          long value = buffer.getLong();
          if (type instanceof BooleanType) rows[i][c] = Boolean.valueOf(value != 0L);
          else if (type instanceof IntegerType || type instanceof DateType) rows[i][c] = Integer.valueOf((int) value);
          else if (type instanceof DoubleType) rows[i][c] = Double.valueOf(Double.longBitsToDouble(value));
          else rows[i][c] = Long.valueOf(value);
        }
      }
    }
    for (int i = 0; i < count; i++) this.values[i] = new GenericInternalRow(rows[i]);
  }

  private static byte[][] texts(ByteBuffer buffer, int count) {
    int[] lengths = new int[count];
    for (int i = 0; i < count; i++) lengths[i] = (int) buffer.getLong();
    byte[][] found = new byte[count][];
    for (int i = 0; i < count; i++) {
      found[i] = new byte[lengths[i]];
      buffer.get(found[i]);
    }
    return found;
  }

  /** The files whose values fulfil all filters; Spark does not evaluate these again. */
  public Seq listFiles(Seq partitionFilters, Seq dataFilters) {
    List predicates = new ArrayList();
    for (Iterator filters = partitionFilters.iterator(); filters.hasNext(); ) {
      predicates.add(this.bound((Expression) filters.next()));
    }
    List found = new ArrayList();
    for (int i = 0; i < this.files.length; i++) {
      boolean kept = true;
      for (int p = 0; kept && p < predicates.size(); p++) {
        kept = ((InterpretedPredicate) predicates.get(p)).eval(this.values[i]);
      }
      if (kept) {
        Object file = new FileStatusWithMetadata(this.files[i], scala.collection.immutable.Map$.MODULE$.empty());
        found.add(new PartitionDirectory(this.values[i], seq(Collections.singletonList(file))));
      }
    }
    return seq(found);
  }

  private InterpretedPredicate bound(Expression filter) {
    List attributes = new ArrayList();
    for (int c = 0; c < this.schema.length(); c++) {
      Attribute found = DataTypeUtils.toAttribute(this.schema.fields()[c]);
      for (Iterator used = filter.references().iterator(); used.hasNext(); ) {
        Attribute reference = (Attribute) used.next();
        if (reference.name().equals(found.name())) found = reference;
      }
      attributes.add(found);
    }
    // A filter over anything else fails here.
    Expression bound = (Expression) BindReferences.bindReference(
        filter, org.apache.spark.sql.catalyst.expressions.package$.MODULE$.AttributeSeq(seq(attributes)), false);
    InterpretedPredicate predicate =
        org.apache.spark.sql.catalyst.expressions.Predicate$.MODULE$.createInterpreted(bound);
    predicate.initialize(0);
    return predicate;
  }

  public Seq rootPaths() { return seq(Collections.singletonList(this.root)); }

  public String[] inputFiles() {
    String[] found = new String[this.files.length];
    for (int i = 0; i < found.length; i++) found[i] = this.files[i].getPath().toUri().toString();
    return found;
  }

  public StructType partitionSchema() { return this.schema; }

  public long sizeInBytes() { return this.size; }

  public void refresh() {}

  public scala.Option metadataOpsTimeNs() { return scala.Option.empty(); }

  public boolean isTimeTravel() { return false; }

  private static Seq seq(List list) { return scala.jdk.javaapi.CollectionConverters.asScala(list).toSeq(); }
}
