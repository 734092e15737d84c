; x86-64-v3

define void @f(ptr noalias readonly captures(none) align 4 %A, ptr noalias readonly captures(none) align 4 %B, ptr noalias captures(none) align 4 %C, i64 %n, i64 %tid, i64 %nthreads, ptr %barrier) nounwind "stackrealign" {
entry:
  %.3 = icmp eq i64 %tid, 0
  br i1 %.3, label %first.1, label %join.2
first.1:
  %.4 = udiv i64 %n, 8
  %.7 = icmp slt i64 0, %.4
  br i1 %.7, label %v_vector_body.5, label %v_vector_done.6
v_vector_body.5:
  %v_vector.8 = phi i64 [ 0, %first.1 ], [ %v_vector_next.16, %v_vector_body.5 ]
  %.9 = mul nsw i64 %v_vector.8, 8
  %.10 = getelementptr float, ptr %A, i64 %.9
  %.11 = load <8 x float>, ptr %.10, align 4
  %.12 = getelementptr float, ptr %B, i64 %.9
  %.13 = load <8 x float>, ptr %.12, align 4
  %.14 = fadd contract <8 x float> %.11, %.13
  %.15 = getelementptr float, ptr %C, i64 %.9
  store <8 x float> %.14, ptr %.15, align 4
  %v_vector_next.16 = add nuw nsw i64 %v_vector.8, 1
  %.17 = icmp slt i64 %v_vector_next.16, %.4
  br i1 %.17, label %v_vector_body.5, label %v_vector_done.6, !llvm.loop !0
v_vector_done.6:
  %.18 = mul nsw i64 %.4, -8
  %.19 = add nsw i64 %n, %.18
  %.20 = call i64 @llvm.smax.i64(i64 %.19, i64 0)
  %.21 = call i64 @llvm.smin.i64(i64 %.20, i64 8)
  %.22 = trunc i64 %.21 to i32
  %.23 = insertelement <8 x i32> poison, i32 %.22, i64 0
  %.24 = shufflevector <8 x i32> %.23, <8 x i32> poison, <8 x i32> zeroinitializer
  %.25 = icmp slt <8 x i32> <i32 0, i32 1, i32 2, i32 3, i32 4, i32 5, i32 6, i32 7>, %.24
  %.26 = icmp slt i64 0, %.21
  br i1 %.26, label %then.27, label %join.28
then.27:
  %.29 = mul nsw i64 %.4, 8
  %.30 = getelementptr float, ptr %A, i64 %.29
  %.31 = call <8 x float> @llvm.masked.load.v8f32.p0(ptr align 4 %.30, <8 x i1> %.25, <8 x float> zeroinitializer)
  %.32 = getelementptr float, ptr %B, i64 %.29
  %.33 = call <8 x float> @llvm.masked.load.v8f32.p0(ptr align 4 %.32, <8 x i1> %.25, <8 x float> zeroinitializer)
  %.34 = fadd contract <8 x float> %.31, %.33
  %.35 = getelementptr float, ptr %C, i64 %.29
  call void @llvm.masked.store.v8f32.p0(<8 x float> %.34, ptr align 4 %.35, <8 x i1> %.25)
  br label %join.28
join.28:
  br label %join.2
join.2:
  ret void
}

declare <8 x float> @llvm.masked.load.v8f32.p0(ptr, <8 x i1>, <8 x float>)
declare void @llvm.masked.store.v8f32.p0(<8 x float>, ptr, <8 x i1>)
declare i64 @llvm.smax.i64(i64, i64)
declare i64 @llvm.smin.i64(i64, i64)

!0 = distinct !{!0, !{!"llvm.loop.vectorize.enable", i1 false}, !{!"llvm.loop.unroll.disable"}}
; znver4

define void @f(ptr noalias readonly captures(none) align 4 %A, ptr noalias readonly captures(none) align 4 %B, ptr noalias captures(none) align 4 %C, i64 %n, i64 %tid, i64 %nthreads, ptr %barrier) nounwind "stackrealign" {
entry:
  %.3 = icmp eq i64 %tid, 0
  br i1 %.3, label %first.1, label %join.2
first.1:
  %.4 = udiv i64 %n, 16
  %.7 = icmp slt i64 0, %.4
  br i1 %.7, label %v_vector_body.5, label %v_vector_done.6
v_vector_body.5:
  %v_vector.8 = phi i64 [ 0, %first.1 ], [ %v_vector_next.16, %v_vector_body.5 ]
  %.9 = mul nsw i64 %v_vector.8, 16
  %.10 = getelementptr float, ptr %A, i64 %.9
  %.11 = load <16 x float>, ptr %.10, align 4
  %.12 = getelementptr float, ptr %B, i64 %.9
  %.13 = load <16 x float>, ptr %.12, align 4
  %.14 = fadd contract <16 x float> %.11, %.13
  %.15 = getelementptr float, ptr %C, i64 %.9
  store <16 x float> %.14, ptr %.15, align 4
  %v_vector_next.16 = add nuw nsw i64 %v_vector.8, 1
  %.17 = icmp slt i64 %v_vector_next.16, %.4
  br i1 %.17, label %v_vector_body.5, label %v_vector_done.6, !llvm.loop !0
v_vector_done.6:
  %.18 = mul nsw i64 %.4, -16
  %.19 = add nsw i64 %n, %.18
  %.20 = call i64 @llvm.smax.i64(i64 %.19, i64 0)
  %.21 = call i64 @llvm.smin.i64(i64 %.20, i64 16)
  %.22 = trunc i64 %.21 to i32
  %.23 = insertelement <16 x i32> poison, i32 %.22, i64 0
  %.24 = shufflevector <16 x i32> %.23, <16 x i32> poison, <16 x i32> zeroinitializer
  %.25 = icmp slt <16 x i32> <i32 0, i32 1, i32 2, i32 3, i32 4, i32 5, i32 6, i32 7, i32 8, i32 9, i32 10, i32 11, i32 12, i32 13, i32 14, i32 15>, %.24
  %.26 = icmp slt i64 0, %.21
  br i1 %.26, label %then.27, label %join.28
then.27:
  %.29 = mul nsw i64 %.4, 16
  %.30 = getelementptr float, ptr %A, i64 %.29
  %.31 = call <16 x float> @llvm.masked.load.v16f32.p0(ptr align 4 %.30, <16 x i1> %.25, <16 x float> zeroinitializer)
  %.32 = getelementptr float, ptr %B, i64 %.29
  %.33 = call <16 x float> @llvm.masked.load.v16f32.p0(ptr align 4 %.32, <16 x i1> %.25, <16 x float> zeroinitializer)
  %.34 = fadd contract <16 x float> %.31, %.33
  %.35 = getelementptr float, ptr %C, i64 %.29
  call void @llvm.masked.store.v16f32.p0(<16 x float> %.34, ptr align 4 %.35, <16 x i1> %.25)
  br label %join.28
join.28:
  br label %join.2
join.2:
  ret void
}

declare <16 x float> @llvm.masked.load.v16f32.p0(ptr, <16 x i1>, <16 x float>)
declare void @llvm.masked.store.v16f32.p0(<16 x float>, ptr, <16 x i1>)
declare i64 @llvm.smax.i64(i64, i64)
declare i64 @llvm.smin.i64(i64, i64)

!0 = distinct !{!0, !{!"llvm.loop.vectorize.enable", i1 false}, !{!"llvm.loop.unroll.disable"}}
